"""Parts of the Ray runtime that need no cluster."""

import os
import stat
from types import SimpleNamespace

import pytest

from starling.config.cluster import PlaceConfig
from starling.config.load import load
from starling.errors import UserError
from starling.runtime.event_queue import EventQueue
from starling.runtime.messages import SlotFreed, StepsLost, StepsStored
from starling.runtime.ray.messages import Credit, FragmentInfo, FragmentResult, GroupStatus, NodeStatus, Reorder
from starling.runtime.ray.placement import Need, Place, check, need
from starling.runtime.ray.rank_relay import RankRelay
from starling.runtime.ray.remote_node import RemoteNode
from starling.runtime.ray.remote_rank import RemoteRank
from starling.runtime.ray.token import MODE, PATH, TOKEN, check_token_file, ensure_token, token_file
from starling.runtime.worker import WorkerSpec


def test_needs_are_the_sum_of_their_parts():
    actor, server = PlaceConfig(cpus=0.5, resources={"fast": 1}), PlaceConfig(cpus=1, gpus=0.25)
    assert need("node 0", (actor, 4), (server, 1)).resources == {"CPU": 3.0, "GPU": 0.25, "fast": 4.0}
    assert need("evaluator", (PlaceConfig(cpus=0), 1)).resources["CPU"] > 0, "Ray wants something to be asked for"


@pytest.mark.parametrize(
    ("needs", "nodes", "message"),
    [
        ([{"CPU": 2}, {"CPU": 2}], [{"CPU": 4}], None),
        ([{"CPU": 2}, {"CPU": 2}], [{"CPU": 2}, {"CPU": 2}], None),
        ([{"CPU": 1}, {"CPU": 3}], [{"CPU": 1}, {"CPU": 3}], None),
        ([{"CPU": 4}], [{"CPU": 2}, {"CPU": 2}], "the most on one is 2 of 4 CPU"),
        ([{"CPU": 1, "fast": 1}], [{"CPU": 2}], "0 of 1 fast"),
        ([{"CPU": 2}] * 3, [{"CPU": 4}], "needs 6 CPU in all and the cluster has 4 CPU on 1 nodes: 2 CPU missing"),
        ([{"CPU": 2}] * 3, [{"CPU": 3}, {"CPU": 3}], "part 2 fits on no node beside the others"),
    ],
)
def test_missing_resources_are_a_clear_error(needs, nodes, message):
    asked = [Need(f"part {i}", one) for i, one in enumerate(needs)]
    if message is None:
        check(asked, nodes)
    else:
        with pytest.raises(UserError, match=message):
            check(asked, nodes)


def test_token_is_created_with_private_mode(tmp_path, monkeypatch):
    monkeypatch.setenv(PATH, str(tmp_path / "new" / "token"))
    monkeypatch.setenv(MODE, "disabled")
    monkeypatch.delenv(TOKEN, raising=False)
    ensure_token()
    assert MODE not in os.environ, "Ray would not ask for the token"
    assert stat.S_IMODE(token_file().stat().st_mode) == 0o600
    first = token_file().read_text()
    assert len(first) == 64
    ensure_token()
    assert token_file().read_text() == first
    token_file().chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        check_token_file()


def status(number, *notices):
    return NodeStatus(number, {0: GroupStatus(0, 0, (), True, False)}, [], {}, True, [], [], list(notices), [], 0, None)


def make_node(deposit=None):
    spec = WorkerSpec("node 0", "node", None, (0,))
    place = Place(need("node 0", (PlaceConfig(), 1)), None, 0)
    return RemoteNode(spec, load("ppo-cartpole", []), place, lambda task: None, None, deposit)


def test_answers_of_a_node_are_handled_in_order():
    node = make_node()
    node._hear_fragment(FragmentResult(Credit(0, 1), FragmentInfo(7, 1, 5), status(2)), "second")
    node._hear_beat((status(4, "fourth"), []))
    assert node.receive() == [], "an earlier answer has not arrived yet"
    node._hear_fragment(FragmentResult(Credit(0, 0), FragmentInfo(7, 0, 5), status(1)), "first")
    assert [(m.sequence, m.buffer) for m in node.receive()] == [(0, "first"), (1, "second")]
    node._hear_beat((status(3, "third"), []))
    assert [m.text for m in node.receive()] == ["third", "fourth"]


def test_fragments_are_deposited_in_order():
    deposited = []
    node = make_node(lambda group, info, buffer, on_stored: deposited.append(info.sequence))
    for number in (3, 1, 2):
        node._hear_fragment(FragmentResult(Credit(0, number), FragmentInfo(7, number - 1, 5), status(number)), None)
    assert deposited == [0, 1, 2]


def test_steps_lost_with_a_shard_are_reported():
    answers = iter([5, 0, None])  # new, duplicate, lost with its shard
    node = make_node(lambda group, info, buffer, on_stored: on_stored(next(answers)))
    for number in (1, 2, 3):
        node._hear_fragment(FragmentResult(Credit(0, number), FragmentInfo(7, number - 1, 5), status(number)), None)
    reported = [message for message in node.receive() if not isinstance(message, SlotFreed)]
    assert reported == [StepsStored(7, 5), StepsStored(7, 0), StepsLost(7, 5)]


def test_messages_to_a_rank_are_relayed_in_order(monkeypatch):
    """A batch takes longer to arrive than a small message: here everything arrives in reverse order."""
    relay = object.__new__(RankRelay)  # without starting its process
    relay._event_queue, relay._turns, passed_on = EventQueue(), Reorder(), []
    monkeypatch.setattr(relay, "_tell", lambda message, sample: passed_on.append(message["said"]), raising=False)
    sent = []
    rank = object.__new__(RemoteRank)
    rank._told = 0
    rank.line = SimpleNamespace(handle=SimpleNamespace(tell=SimpleNamespace(remote=lambda *call: sent.append(call))))
    for word in ("one", "two", "three"):
        rank.send({"said": word})
    for call in reversed(sent):
        relay.tell(*call)
        relay._event_queue.run(relay._event_queue.wait(0))
    assert passed_on == ["one", "two", "three"]
