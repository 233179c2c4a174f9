"""Several learners in processes: a dead or hung one is reported, all continue, and no experience is lost."""

import os
import signal
import time

import pytest
import torch
from support.driving import NGU, TIMEOUT, evaluate, evaluate_twice, run_until, run_until_notice, stepped_run

from starling.config.load import load
from starling.errors import UserError
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.runtime.messages import StateRequest, StateWritten
from starling.runtime.supervisor import RunFailedError
from starling.state_io import unpack

SMALL = ["learners=2", "env.id=toy/identity", "env.num=4", "actors=2", "net.torso.hidden=[8]", "stop.return=null"]
IMPALA = ["algo.unroll=5", "algo.batch=4"]
DQN = ["algo.learning_starts=100", "algo.fragment=4", "algo.batch=16", "algo.prioritized.alpha=0.6"]


def running(preset, *settings):
    return stepped_run(preset, *SMALL, *settings)


def updates(runtime, more):
    target = runtime.updates + more
    return run_until(runtime, lambda: runtime.updates >= target)


def rank(runtime, number):
    return runtime.hubs[number].supervisor.workers[f"learner {number}"]


@pytest.mark.slow
def test_after_losing_a_rank_all_continue_from_the_same_update():
    signals = [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)]
    with running("dqn-cartpole", *DQN, "supervision.timeout=20", "supervision.reduction=5") as runtime:
        for victim, sig in signals:
            updates(runtime, 50)
            before, steps = runtime.updates, runtime.env_steps
            os.kill(rank(runtime, victim).process.pid, sig)
            notices = run_until_notice(runtime, "continue together")
            died = f"learner {victim} died ({'killed by SIGKILL' if sig == signal.SIGKILL else 'hung'}"
            assert any(died in line for line in notices)
            assert any(f"learner {1 - victim} lost the others" in line for line in notices)
            (line,) = [line for line in notices if "continue together" in line]
            assert int(line.rsplit(" ", 1)[1].replace(",", "")) >= before - 1, "no more than one update is lost"
            updates(runtime, 50)
            row = runtime.drain_metrics()
            assert row["ledger/lost"] == 0, "the shards stay where they are"
            assert row["store/replay/size"] >= steps - 4 * 2 * 2
            assert row["faults/learner"] >= 1
        one, other = states_of_one_version(runtime)
        assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


def states_of_one_version(runtime):
    """The states of both ranks, requested until both have the same number of updates."""
    end = time.monotonic() + TIMEOUT
    while True:
        assert time.monotonic() < end
        written = [runtime._ask(k, StateRequest(), StateWritten, TIMEOUT) for k in range(2)]
        states = [runtime._state_buffers[k].read() if written[k] else None for k in range(2)]
        assert None not in states
        one, other = (unpack(state) for state in states)
        if one["updates"] == other["updates"]:
            return one, other
        next(runtime.rounds)


def kill_repeatedly(runtime):
    while True:
        process = rank(runtime, 1).process
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
        for _ in range(20):
            next(runtime.rounds)


def test_rank_that_dies_repeatedly_ends_the_run_but_its_progress_is_saved():
    with running("impala-cartpole", *IMPALA, "supervision.restarts=1") as runtime:
        updates(runtime, 20)
        with pytest.raises(RunFailedError, match="learner 1 was given up"):
            kill_repeatedly(runtime)
        state = runtime.save(with_tables=True)
    assert state["learner"]["updates"] >= 20, "the other rank has them"


def test_first_weights_of_actors_are_the_restored_ones():
    runtime = build_runtime(RunPlan.from_config(load("impala-cartpole", [*SMALL, *IMPALA])))
    try:
        with torch.no_grad():
            for parameter in runtime.learner.model.parameters():
                parameter.fill_(0.25)
        for writer in runtime._weights:
            assert all((tensor == 0.25).all() for tensor in writer._view.mine if tensor.is_floating_point())
    finally:
        runtime.close()


def test_synchronous_learning_with_several_learners_has_no_lag():
    with running("ppo-cartpole", "algo.rollout=8", "algo.minibatches=2") as runtime:
        updates(runtime, 20)
        assert runtime.drain_metrics()["learner/lag"] == 0


@pytest.mark.parametrize("inference", ["local", "central"])
def test_metrics_cover_all_learners(inference):
    with running("impala-cartpole", *IMPALA, f"inference={inference}", "eval.every=1000000") as runtime:
        updates(runtime, 20)
        runtime.drain_metrics()
        updates(runtime, 50)
        row = runtime.drain_metrics()
        assert row["ledger/produced"] == row["ledger/inserted"] + row["ledger/open"] + row["ledger/lost"]
        assert 0 < row["time/learner/reduction"] < 1
        assert row["loss/policy"] is not None
        hubs = runtime.status().hubs
        assert [hub.rank for hub in hubs] == [0, 1]
        for hub in hubs:
            (learner,) = [worker for worker in hub.workers if worker.kind == "learner"]
            assert learner.publish_ms is not None
            assert learner.weights >= 70
            assert learner.bytes_out > 0
            writers = [worker for worker in hub.workers if worker.kind in ("actor", "inference")]
            assert all(worker.bytes_in > 0 and worker.bytes_out > 0 for worker in writers)
        evaluate(runtime)


def test_metrics_that_come_late_are_in_the_next_row(monkeypatch):
    """A rank answers between two updates, which may take long."""
    with running("impala-cartpole", *IMPALA) as runtime:
        updates(runtime, 5)
        monkeypatch.setattr("starling.runtime.learners_runtime.METRICS_SECONDS", 0.0)
        assert "loss/policy" not in runtime.drain_metrics()
        updates(runtime, 20)
        assert "loss/policy" in runtime.drain_metrics()


def test_evaluator_continues_its_policy_trials():
    with stepped_run("ngu-deepsea", *NGU, "learners=2", "actors=2", "runtime=processes") as runtime:
        updates(runtime, 5)
        evaluate_twice(runtime)


def test_impossible_settings_are_rejected():
    for settings, what in [
        (["runtime=inline"], "set runtime=processes"),
        (["actors=1"], "actors=1 is less than learners=2"),
        (["algo.batch_envs=3"], "cannot be divided equally"),
        (["net.core.kind=lstm", "net.shared=true", "algo.minibatches=4"], "lower algo.minibatches"),
    ]:
        with pytest.raises(UserError, match=what):
            RunPlan.from_config(load("ppo-cartpole", [*SMALL, *settings]))


def test_state_saved_before_the_first_step_is_the_initial_state():
    """As after a signal right at the start, when no rank is running yet."""
    runtime = build_runtime(RunPlan.from_config(load("impala-cartpole", [*SMALL, *IMPALA])))
    try:
        state = runtime.save(with_tables=True)
    finally:
        runtime.close()
    assert state["learner"]["updates"] == 0
    assert state["store"]["env_steps"] == 0
    for name, value in runtime.learner.model.state_dict().items():
        assert torch.equal(value, torch.as_tensor(state["learner"]["model"][name]))
