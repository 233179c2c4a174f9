"""Runs over Ray: they learn, survive failures of their parts, and their ledger balances."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.driving import (
    NGU,
    checked_ledger,
    evaluate,
    evaluate_twice,
    run_steps,
    run_until_notice,
    short_timeouts,
    stepped_run,
)

import starling
from starling.api import Quiet
from starling.config.load import load
from starling.errors import UserError
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.runtime.supervisor import RunFailedError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]

SMALL = [
    *["runtime=ray", "env.num=4", "actors=2", "stop.return=null", "supervision.timeout=20", "ray.timeout=30"],
    *["net.torso.hidden=[8]", "eval.every=1000000"],
]
IMPALA = ["impala-cartpole", "env.id=toy/identity", "algo.unroll=5", "algo.batch=4"]
DQN = ["dqn-cartpole", "env.id=toy/identity", "algo.learning_starts=50", "algo.fragment=4", "algo.capacity=4000"]


def running(preset: str, *settings: str) -> AbstractContextManager[Any]:
    return stepped_run(preset, *SMALL, *settings)


def pids(name: str) -> list[int]:
    """Processes with this name in ps, started by this process or by a Ray instance that it started."""
    found, parents = [], {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline") as line, open(f"/proc/{entry}/comm") as short:
                named = line.read().startswith(name) or short.read().startswith(name)
            with open(f"/proc/{entry}/stat") as stat:
                parents[int(entry)] = int(stat.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found += [int(entry)] if named else []

    def comes_from_here(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and comes_from_here(parents[pid]))

    return [pid for pid in found if comes_from_here(pid)]


def newest_process(kind: str, before: set[int]) -> int:
    """The newest process of this kind that did not exist before the run."""
    new = [pid for pid in pids(kind) if pid not in before]
    assert new, f"no process called {kind}"
    return new[-1]


def test_run_continues_after_an_actor_and_then_its_node_are_killed():
    failures = [("starling actor", "(killed by SIGKILL)"), ("ray::Node", "node 0 died (its process died)")]
    before = {name: set(pids(name)) for name, _ in failures}
    with running(*IMPALA, "eval.every=null") as runtime:
        for name, said in failures:
            run_steps(runtime, 400)
            updates = runtime.updates
            os.kill(newest_process(name, before[name]), signal.SIGKILL)
            notices = run_until_notice(runtime, "died")
            assert any(f"{said}: restarting it in 0." in line for line in notices), notices
            later = run_steps(runtime, 600)
            assert runtime.updates > updates
            checked_ledger(runtime)
            assert not any("died" in line for line in later)


def test_killed_or_hung_server_and_hung_node_are_replaced():
    failures = [
        ("starling infere", signal.SIGKILL, "inference died (killed by SIGKILL): restarting it in 0."),
        ("starling infere", signal.SIGSTOP, "inference died (hung"),
        ("ray::Node", signal.SIGSTOP, " died (hung: no answer)"),
    ]
    before = {name: set(pids(name)) for name, _, _ in failures}
    with running(*IMPALA, "inference=central", "supervision.timeout=4") as runtime:
        run_steps(runtime, 200)
        while not all(worker.ever_ready for worker in runtime.hub.supervisor.workers.values()):
            run_steps(runtime, 10)  # a worker that was never ready may wait for its placement
        for name, sig, said in failures:
            updates = runtime.updates
            os.kill(newest_process(name, before[name]), sig)
            with short_timeouts(*runtime.hub.supervisor.workers.values()) if name == "ray::Node" else nullcontext():
                run_until_notice(runtime, said)
            run_steps(runtime, 400)
            assert runtime.updates > updates
            checked_ledger(runtime)
        evaluate(runtime)


def test_evaluator_continues_its_policy_trials():
    with running("ngu-deepsea", *NGU) as runtime:
        run_steps(runtime, 200)
        evaluate_twice(runtime)


def test_node_that_hangs_before_its_first_answer_is_replaced(monkeypatch):
    monkeypatch.setattr("starling.runtime.ray.remote.PLACE_SECONDS", 1.0)
    stopped = threading.Event()

    def stop_the_first() -> None:
        while not (starting := pids("ray::starling ")):  # the name of the process while Ray creates it
            time.sleep(0.01)
        os.kill(starting.pop(), signal.SIGSTOP)
        stopped.set()

    threading.Thread(target=stop_the_first, daemon=True).start()
    with running(*IMPALA, "eval.every=null") as runtime:
        while not stopped.is_set():
            next(runtime.rounds)
        assert runtime.env_steps == 0
        with short_timeouts(*runtime.hub.supervisor.workers.values()):
            run_until_notice(runtime, "node 0 died (hung: no answer): restarting it in")
        run_steps(runtime, 400)


def test_run_continues_without_a_lost_shard_until_it_is_back():
    before = set(pids("ray::Shard"))
    settings = ["ray.shards=2", "algo.prioritized.alpha=0.6", "eval.every=null"]
    with running(*DQN, *settings) as runtime:
        run_steps(runtime, 300)
        row = runtime.drain_metrics()
        assert row["store/replay/inserted"] > 100
        for sig, said in ((signal.SIGKILL, "its process died"), (signal.SIGSTOP, "hung: no answer")):
            updates = runtime.updates
            os.kill(newest_process("ray::Shard", before), sig)
            timeouts = (
                short_timeouts(*runtime.hub.supervisor.workers.values()) if sig == signal.SIGSTOP else nullcontext()
            )
            with timeouts:  # on a busy machine Ray reports a death only after seconds
                notices = run_until_notice(runtime, "starts empty")  # there is no checkpoint
            assert any(line.startswith("shard ") and f"died ({said})" in line for line in notices), notices
            run_steps(runtime, 300)
            assert runtime.updates > updates
            runtime.hub.call(lambda: runtime.hub.store.limiter.check_valid())
            ledger = checked_ledger(runtime)
        assert ledger["lost"] > 0, "fragments sent to the hung shard"


class ShardKiller(Quiet):
    """Kills a shard once there is a checkpoint, and ends the run a few rows after the shard is restored."""

    def __init__(self, checkpoints: Path, before: set[int]) -> None:
        self._checkpoints, self._before = checkpoints, before
        self._restored, self.rows = False, []
        self.since: int | None = None  # env steps between the checkpoint and the kill

    def row(self, row) -> None:
        if self._restored:
            self.rows.append(row)
            if len(self.rows) == 3:
                os.kill(os.getpid(), signal.SIGINT)
        elif self.since is None and (saved := list(self._checkpoints.glob("step-*"))):
            os.kill(newest_process("ray::Shard", self._before), signal.SIGKILL)
            self.since = row["env_steps"] - int(max(saved).name.removeprefix("step-"))

    def message(self, line) -> None:
        self._restored = self._restored or "starts from the newest checkpoint" in line


def test_lost_shard_is_restored_from_the_checkpoint(tmp_path):
    settings = [*SMALL, *DQN[1:], "ray.shards=2", "algo.capacity=40000", "algo.updates_per_step=0.05"]
    until = ["eval.every=null", "log.every=200", "checkpoint.every=2000", "stop.env_steps=100000000", "stop.minutes=4"]
    seen = ShardKiller(tmp_path / "a" / "checkpoints", set(pids("ray::Shard")))
    done = starling.train(DQN[0], [*settings, *until, "run=a"], runs=tmp_path, display=seen)
    assert done.reason == "SIGINT received"
    missing = seen.rows[-1]["env_steps"] - seen.rows[-1]["store/replay/size"]
    assert 0 < missing < seen.since + 400, "only steps since the checkpoint are missing"


def test_after_losing_one_of_two_learners_both_continue():
    failures = [
        ("starling learne", signal.SIGSTOP, "died (hung"),
        ("ray::RankNode", signal.SIGKILL, "died (its process died)"),
    ]
    before = {name: set(pids(name)) for name, _, _ in failures}
    settings = ["learners=2", "ray.learner.cpus=1", "algo.prioritized.alpha=0.6", "eval.every=null"]
    with running(*DQN, *settings, "supervision.reduction=5", "supervision.timeout=5") as runtime:
        run_steps(runtime, 200)
        for name, sig, said in failures:
            updates = runtime.updates
            assert updates > 0
            os.kill(newest_process(name, before[name]), sig)
            notices = run_until_notice(runtime, "the learners continue together")
            assert any(said in line for line in notices), notices
            run_steps(runtime, 200)
            assert runtime.updates >= updates
        state = runtime.save(with_tables=True)
        assert state["learner"]["updates"] >= updates
        assert set(state["store"]["shards"]) == {"0", "1"}


def test_saved_state_is_restored():
    settings = [*DQN, "ray.shards=2", "eval.every=null"]
    with running(*settings) as runtime:
        run_steps(runtime, 400)
        runtime.halt()
        state = runtime.save(with_tables=True)
        steps, updates = runtime.env_steps, runtime.updates
        sizes = runtime.hub.metrics()["store/replay/size"]
    with running(*settings, "actors=4") as other:
        other.restore(state)
        assert (other.env_steps, other.updates) == (steps, updates)
        run_steps(other, 100)
        assert other.hub.metrics()["store/replay/size"] >= sizes


def test_first_actions_use_the_restored_weights():
    with running(*DQN, "eval.every=null") as runtime:
        runtime.learner.updates = 7  # as in a resumed run
        versions, insert, begin = [], runtime.hub.store.insert, runtime.hub.credits._try_begin
        nodes, all_ready_at = runtime.hub.supervisor.workers.values(), []

        def begin_late(num_envs):  # a second after all nodes are ready, as if the learner had to catch up
            if not all_ready_at and all(node.ever_ready for node in nodes):
                all_ready_at.append(time.monotonic())
            return bool(all_ready_at) and time.monotonic() > all_ready_at[0] + 1 and begin(num_envs)

        runtime.hub.credits._try_begin = begin_late
        runtime.hub.store.insert = lambda new: (versions.append(new.trajectory.policy_version.min()), insert(new))
        run_steps(runtime, 40)
        assert min(versions) >= 7


def test_env_that_always_raises_ends_the_run_with_its_traceback():
    faulty = ["env.id=support.faulty_env:Faulty", "env.args={what: raise_step, when: 3}", "supervision.restarts=1"]
    with running(*IMPALA, *faulty, "eval.every=null") as runtime:
        with pytest.raises(RunFailedError, match="0 of 2 actors are left"):
            run_until_notice(runtime, "this is never said")
        assert any("Traceback" in line for line in [*runtime.seen_notices, *runtime.notices()])


def test_non_finite_observation_drops_only_its_episode(tmp_path):
    faulty = ["env.id=support.faulty_env:Faulty", f"env.args={{what: nan_obs, when: 30, once: {tmp_path / 'done'}}}"]
    with running(*IMPALA, *faulty, "eval.every=null") as runtime:
        (said,) = [line for line in run_until_notice(runtime, "its episode was dropped") if "dropped" in line]
        assert said.startswith("env 'support.faulty_env:Faulty' gave NaN in its observation (env ")
        run_steps(runtime, 300)
        assert runtime.drain_metrics()["envs/dropped"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["ray.actor.gpus=1"], "node 0 needs 2 CPU, 2 GPU, and no node of the cluster has that much: .* 0 of 2 GPU"),
        (["ray.actor.cpus=1000"], "no node of the cluster has that much: the most on one is 16 of 2000 CPU"),
        (["ray.nodes=2", "ray.actor.cpus=12"], "needs 25 CPU in all and the cluster has 16 CPU .*: 9 CPU missing"),
        (["ray.shards=2"], "ray.shards is for replay; this algorithm reads a queue"),
    ],
)
def test_settings_that_the_cluster_cannot_satisfy_are_one_line_errors(settings, message):
    with pytest.raises(UserError, match=message):
        build_runtime(RunPlan.from_config(load(IMPALA[0], [*SMALL, *IMPALA[1:], *settings])))
