"""Bytes from another process that are not valid messages: each decoder reports what is wrong at once, or ignores them.

`STARLING_FUZZ=20000` (`make fuzz`) sets the number of examples per decoder.
"""

import base64
import json
import os
import struct
from contextlib import suppress
from dataclasses import fields
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.driving import run_until, run_until_notice, stepped_run

from starling.runtime.inference_channel import LoopSide, ServerSide, SharedInferenceChannel
from starling.runtime.link import LARGEST, Link, link
from starling.runtime.messages import (
    FROM_WORKERS,
    TO_WORKERS,
    BatchReady,
    BrokenMessageError,
    Ready,
    RendezvousValue,
    decode,
    encode,
)
from starling.runtime.rendezvous import RankLine
from starling.runtime.shared_weights import SharedWeights, WeightReader, WeightWriter, copy_size
from starling.state_io import pack, unpack
from starling.types import ArraySpec, Episode, Layout, Progress

fuzzed = settings(max_examples=int(os.environ.get("STARLING_FUZZ", "150")), deadline=2000)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def messages():
    """Any message that a worker sends; NaN is left out, since it is not equal to itself."""
    plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
    values = {
        int: st.integers(-3, 2**40),
        str: st.text(max_size=20),
        bool: st.booleans(),
        str | None: st.none() | st.text(max_size=20),
        tuple[int, ...]: st.lists(st.integers(0, 9), max_size=4).map(tuple),
        tuple[str, ...]: st.lists(st.text(max_size=9), max_size=3).map(tuple),
        tuple[Episode, ...]: st.lists(
            st.builds(Episode, st.integers(0, 9), st.floats(allow_nan=False), st.integers(0, 99)), max_size=3
        ).map(tuple),
        dict[str, Any]: st.dictionaries(st.text(max_size=8), plain, max_size=3),
    }

    def build(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{field.name: values[hints[field.name]] for field in fields(kind)})

    return st.sampled_from(FROM_WORKERS).flatmap(build)


def framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def changed(draw, data: bytes) -> bytes:
    """Valid bytes, some of which are replaced, missing, or repeated."""
    at, to = sorted(draw(st.tuples(st.integers(0, len(data)), st.integers(0, len(data)))))
    return data[:at] + draw(st.sampled_from([b"", data[at:to] * 2]) | st.binary(max_size=16)) + data[to:]


@st.composite
def streams(draw) -> bytes:
    """Bytes that a peer could write: messages, damaged messages, other JSON, and noise."""
    valid = messages().map(lambda message: framed(encode(message)))
    other = JSON.map(lambda value: framed(json.dumps(value).encode()))
    noise = st.binary(max_size=40) | st.binary(max_size=40).map(framed)
    data = b"".join(draw(st.lists(valid | other | noise, max_size=6)))
    return changed(draw, data) if draw(st.booleans()) else data


def written_to(data: bytes) -> Link:
    """The receiving end of a link on which a peer wrote `data` and then closed."""
    ours, theirs = link()
    os.write(theirs._writing.fd, data)
    theirs.close()
    return ours


def received(end: Link) -> list:
    found = []
    for _ in range(3):
        found += end.receive()
    return found


@fuzzed
@given(streams())
def test_link_returns_messages_and_then_ends(data):
    end = written_to(data)
    try:
        found = received(end)
        assert all(type(message) in FROM_WORKERS for message in found)
        assert end.ended
        assert end.receive() == []
    finally:
        end.close()


@fuzzed
@given(st.data())
def test_messages_before_the_damage_are_received(data):
    sent, noise = data.draw(st.lists(messages(), max_size=4)), data.draw(st.binary(min_size=1, max_size=30))
    damaged = framed(b"\xff" + noise)
    end = written_to(b"".join(framed(encode(message)) for message in sent) + damaged + framed(encode(Ready())))
    try:
        assert received(end) == sent
        assert end.broken is not None
        assert end.broken.startswith("not JSON")
    finally:
        end.close()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (framed(b"[" * 60_000), "not JSON"),
        (framed(b'{"a": ' * 9_000), "not JSON"),
        (framed(b'{"a": ' + b"9" * 5_000 + b"}"), "not JSON"),
        (framed(b"[1]"), "unknown message [1]"),
        (framed(b"\xff\xfe"), "not JSON"),
        (struct.pack("<I", LARGEST + 1) + b"{", f"{LARGEST + 1:,} bytes"),
        (b"\xff\xff\xff\xff", "4,294,967,295 bytes"),
    ],
    ids=["deep list", "deep object", "long integer", "list", "not text", "large", "largest"],
)
def test_invalid_data_ends_the_link_with_a_reason(data, words):
    end = written_to(data)
    assert received(end) == []
    assert end.ended
    assert words in end.broken
    with pytest.raises(BrokenMessageError, match="the main process sent an invalid message"):
        end.raise_if_ended()
    end.close()


NUMBERS = st.lists(st.integers(-2, 5), max_size=5)
NAMES = [kind.__name__ for kind in (*FROM_WORKERS, *TO_WORKERS)]
FIELDS = sorted({field.name for kind in FROM_WORKERS for field in fields(kind)})


@fuzzed
@given(
    st.sampled_from([*NAMES, "Nonsense", "FragmentReceived"]),
    st.dictionaries(st.sampled_from(FIELDS), JSON | NUMBERS | st.lists(NUMBERS, max_size=3), max_size=4),
)
def test_accepted_messages_have_the_fields_of_their_class(name, values):
    try:
        message = decode(json.dumps([name, values]).encode(), FROM_WORKERS)
    except BrokenMessageError:
        return
    assert type(message).__name__ == name
    assert decode(encode(message), FROM_WORKERS) == message or "NaN" in encode(message).decode()
    for field in fields(message):
        value, hint = getattr(message, field.name), get_type_hints(type(message))[field.name]
        if hint in (int, str, bool):
            assert type(value) is hint
        elif hint == tuple[Episode, ...]:
            assert all(type(episode) is Episode for episode in value)


@fuzzed
@given(st.data())
def test_messages_round_trip(data):
    message = data.draw(messages())
    assert decode(encode(message), FROM_WORKERS) == message


@pytest.mark.parametrize(
    "content",
    [
        {},
        ["FragmentReady"],
        ["FragmentReady", {"group": 0, "slot": 0, "actor_id": 0}],
        ["FragmentReady", {"group": 0, "slot": "0", "actor_id": 0, "sequence": 0}],
        ["FragmentReady", {"group": 0, "slot": True, "actor_id": 0, "sequence": 0}],
        ["FragmentReady", {"group": 0, "slot": 0, "actor_id": 0, "sequence": 0, "buffer": None}],
        ["FragmentReceived", {"group": 0, "slot": 0, "actor_id": 0, "sequence": 0, "buffer": None}],
        ["CreditsReturned", {"group": 0, "slots": 0}],
        ["CreditsReturned", {"group": 0, "slots": [[]]}],
        ["EpisodesEnded", {"episodes": [[0, 1.0]]}],
        ["EpisodesEnded", {"episodes": [[0.5, 1.0, 3]]}],
        ["EpisodesDropped", {"count": 1}],
        ["EpisodesDropped", {"count": 1, "notices": [1]}],
        ["EvaluationDone", {"row": {}, "state": None}],
        ["BatchLearned", {"slot": 0, "with_priorities": 1, "updates": 0}],
        ["RankWaits", {"updates": 1, "optimizer_steps": 0, "late": False}],
        ["RankWaits", {"updates": 1, "optimizer_steps": 0, "late": False, "why": 3}],
        ["Fault", {"text": 1, "kind": "", "details": ""}],
        ["CreditGranted", {"group": 0, "slot": 0}],
        ["IncarnationEnded", {"group": 0, "steps": 3}],
    ],
    ids=str,
)
def test_messages_of_a_wrong_form_are_rejected(content):
    with pytest.raises(BrokenMessageError):
        decode(json.dumps(content).encode(), FROM_WORKERS)


@fuzzed
@given(st.integers(0, 3), st.text(max_size=4), st.text(max_size=12))
def test_posted_value_is_bytes_or_rejected(attempt, key, value):
    main, theirs = link()
    line = RankLine(theirs)
    main.send(RendezvousValue(attempt, key, value))
    main.send(BatchReady(0, 1))
    try:
        assert line.receive() == [BatchReady(0, 1)]
        assert line.values(attempt) == {key: base64.b64decode(value)}
    except BrokenMessageError:
        pass
    finally:
        main.close()
        theirs.close()


LAYOUT = Layout(ArraySpec((2,), np.dtype(np.float32)), ArraySpec((), np.dtype(np.int64)), ("env",), {}, {})


@fuzzed
@given(st.binary(max_size=100) | st.tuples(*[st.integers(-3, 3)] * 3).map(lambda t: struct.pack("<qqq", *t)))
def test_tokens_of_central_inference_refer_to_a_group_or_are_rejected(data):
    channel = SharedInferenceChannel(LAYOUT, {0: 1, 2: 3})
    server, loop = ServerSide(channel.server_port()), LoopSide(channel.loop_port(2), 2, 0)
    os.write(channel._bell[1].fd, data)
    os.write(channel._answers[2][1].fd, data)
    with suppress(BrokenMessageError):
        assert {arrival.group for arrival in server.arrivals()} <= {0, 2}
    with suppress(BrokenMessageError):
        assert all(len(actions) == 3 for actions in loop.act([0]) if actions is not None)


STATE = {
    "updates": 3,
    "model": {"a": torch.arange(6.0).reshape(2, 3), "b": np.ones((2, 0), np.int64)},
    "rng": {"state": [1, 2, float("inf")], "name": "PCG64"},
}


@st.composite
def packed(draw) -> bytes:
    """A packed state, damaged in its bytes or in its leading document."""
    data = pack(STATE)
    if draw(st.booleans()):
        return changed(draw, data)
    end = 8 + int.from_bytes(data[:8], "little")
    document = draw(JSON | st.sampled_from(["dict", "tensor", "array", "segments", "python"]).flatmap(leaf))
    text = json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text + data[end:]


def leaf(kind):
    return JSON.map(lambda content: {"dict": {"a": {kind: content}}})


@fuzzed
@given(packed())
def test_packed_state_is_read_or_rejected(data):
    try:
        unpack(data)
    except ValueError:
        return


@pytest.mark.parametrize("data", [b"", b"\x00" * 8, b"\xff" * 8, b"\xff" * 400, pack(STATE)[:-1], pack(STATE) + b"x"])
def test_state_of_another_length_is_rejected(data):
    with pytest.raises(ValueError, match="packed state"):
        unpack(data)
    assert unpack(pack(STATE))["rng"] == STATE["rng"]


@fuzzed
@given(st.data())
def test_weights_from_another_node_fit_or_are_rejected(data):
    model = torch.nn.Linear(2, 1)
    shared_weights = SharedWeights(copy_size(model))
    WeightWriter(shared_weights, model).publish(Progress())
    copy = np.array(shared_weights.bytes_of(1))
    numbers = st.lists(st.floats(), min_size=3, max_size=3).map(lambda header: struct.pack("<3d", *header))
    noise = np.frombuffer(data.draw(numbers | st.binary(max_size=64)), np.uint8)
    copy[: len(noise)] = noise
    reader = WeightReader(shared_weights, model)
    choices = [copy, copy[:-1], copy[:1], copy.reshape(1, -1), copy.astype(np.float32), np.uint8(3)]
    with suppress(ValueError):
        shared_weights.accept(np.asarray(data.draw(st.sampled_from(choices))))
    reader.refresh()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", range(3))
def test_weights_with_an_invalid_header_are_rejected(place, number):
    shared_weights = SharedWeights(copy_size(torch.nn.Linear(2, 1)))
    copy = np.zeros(shared_weights.size, np.uint8)
    shared_weights.accept(copy)
    copy[8 * place : 8 * place + 8] = np.frombuffer(struct.pack("<d", number), np.uint8)
    with pytest.raises(ValueError, match="header holds no numbers"):
        shared_weights.accept(copy)


@pytest.mark.parametrize(
    ("data", "words"), [(b"\xff\xff", "not JSON"), (b'["Nonsense", {}]', "unknown message ['Nonsense', {}]")]
)
def test_actor_that_writes_noise_is_reported_and_restarted(data, words):
    """This process writes into the pipe of a real worker as if it were that worker."""
    small = ["env.id=toy/identity", "env.num=4", "actors=2", "net.torso.hidden=[8]", "stop.return=null"]
    with stepped_run("impala-cartpole", *small, "algo.unroll=5", "algo.batch=4", "runtime=processes") as runtime:
        worker = runtime.hub.supervisor.workers["actor 0"]
        run_until(runtime, lambda: runtime.updates >= 2 and worker.ever_ready)
        with open(f"/proc/self/fd/{worker.link.fileno()}", "wb", buffering=0) as pipe:
            pipe.write(framed(data))
        notices = run_until_notice(runtime, "actor 0 died")
        assert any(f"actor 0 died (BrokenMessageError: sent an invalid message ({words}" in line for line in notices), (
            notices
        )
        updates = runtime.updates
        run_until(runtime, lambda: runtime.updates >= updates + 5)
