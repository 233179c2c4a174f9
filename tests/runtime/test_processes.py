"""Runs with worker processes: they learn, survive failures of workers, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.driving import (
    NGU,
    TIMEOUT,
    checked_ledger,
    evaluate,
    run_steps,
    run_until,
    run_until_notice,
    short_timeouts,
    stepped_run,
)

from starling.runtime.processes_runtime import ProcessesRuntime
from starling.runtime.supervisor import RunFailedError

SMALL = [
    "runtime=processes",
    "env.id=toy/identity",
    "env.num=4",
    "actors=2",
    "algo.unroll=5",
    "algo.batch=4",
    "net.torso.hidden=[8]",
    "stop.return=null",
]


def running(*settings: str) -> AbstractContextManager[Any]:
    return stepped_run("impala-cartpole", *SMALL, *settings)


def pid(runtime: ProcessesRuntime, name: str) -> int:
    process = runtime.hub.supervisor.workers[name].process
    assert process is not None
    assert process.pid is not None
    return process.pid


@pytest.mark.parametrize(
    ("inference", "victims"), [("local", ["actor 1", "evaluator"]), ("central", ["env 1", "inference"])]
)
@pytest.mark.parametrize("sig", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_run_continues_after_losing_workers(inference, victims, sig):
    with running(f"inference={inference}", "eval.every=1000000", "supervision.timeout=60") as runtime:
        for victim in victims:
            run_steps(runtime, 400)
            wait_until_all_run(runtime)
            before = runtime.updates
            os.kill(pid(runtime, victim), sig)
            hangs = sig == signal.SIGSTOP
            with short_timeouts(runtime.hub.supervisor.workers[victim]) if hangs else nullcontext():
                notices = run_until_notice(runtime, f"{victim} died")
            said = next(line for line in notices if f"{victim} died" in line)
            assert ("hung" if hangs else "killed by SIGKILL") in said
            assert "restarting it in 0." in said
            run_steps(runtime, 600)
            assert runtime.updates > before
        assert checked_ledger(runtime)["lost"] <= len(victims) * 2 * 4 * 6, "at most the fragments in flight"
        wait_until_all_run(runtime)
        evaluate(runtime)


def test_policy_trials_survive_the_evaluator_and_the_run():
    settings = [*NGU, "runtime=processes", "actors=2"]
    with stepped_run("ngu-deepsea", *settings) as runtime:
        run_steps(runtime, 200)
        evaluate(runtime)
        first = runtime.save(with_tables=False)["evaluator"]
        assert set(first["arms"]) == {0, 1, 2, 3}
        os.kill(pid(runtime, "evaluator"), signal.SIGKILL)
        run_until_notice(runtime, "evaluator died")
        wait_until_all_run(runtime)
        evaluate(runtime)
        state = runtime.save(with_tables=True)
        assert state["evaluator"]["arms"][:5] == first["arms"]
        assert state["evaluator"]["played"] == 10
    with stepped_run("ngu-deepsea", *settings) as runtime:
        runtime.restore(state)
        assert runtime.save(with_tables=False)["evaluator"] == state["evaluator"]
        run_steps(runtime, 200)
        evaluate(runtime)
        assert runtime.save(with_tables=False)["evaluator"]["played"] == 15


def wait_until_all_run(runtime: ProcessesRuntime) -> None:
    """Run until every worker has a process."""
    workers = runtime.hub.supervisor.workers.values()
    run_until(runtime, lambda: all(worker.process is not None for worker in workers))


@pytest.mark.parametrize(("inference", "victim"), [("local", "actor 0"), ("central", "env 0")])
def test_synchronous_learning_continues_without_one_of_its_actors(inference, victim):
    """The credit of a dead actor is granted to another one."""
    settings = ["runtime=processes", f"inference={inference}", "env.num=4", "actors=2", "algo.rollout=8"]
    with stepped_run("ppo-cartpole", *settings, "stop.return=null", "supervision.restarts=0") as runtime:
        run_steps(runtime, 200)
        os.kill(pid(runtime, victim), signal.SIGKILL)
        run_until_notice(runtime, "given up")
        run_steps(runtime, 400)
        row = runtime.drain_metrics()
        assert row["learner/lag"] == 0


def test_too_few_actors_end_the_run():
    with running("supervision.restarts=0", "supervision.min_actors=2") as runtime:
        run_steps(runtime, 100)
        os.kill(pid(runtime, "actor 1"), signal.SIGKILL)
        with pytest.raises(RunFailedError, match="1 of 2 actors are left"):
            run_steps(runtime, 10**9)


@pytest.mark.parametrize(
    ("inference", "what"),
    [
        *[("local", what) for what in ("raise_step", "shape", "exit", "hang", "raise_construct")],
        *[("central", what) for what in ("raise_step", "hang")],  # env processes: an error, and no response
    ],
)
def test_env_with_one_fault_is_reported_and_restarted(tmp_path, inference, what):
    mark = tmp_path / "done"
    args = f"{{what: {what}, when: 30, once: {mark}}}"
    if what == "raise_construct":  # the main process makes one env first, to get its spaces
        args = f"{{what: raise_reset, when: 0, once: {mark}}}"
    timeout = 3 if what == "hang" else 60  # a slow start on a busy machine must not count as hung
    supervision = f"supervision.timeout={timeout}"
    with running(
        "env.id=support.faulty_env:Faulty", f"env.args={args}", f"inference={inference}", supervision
    ) as runtime:
        notices = run_until_notice(runtime, "died")
        notices += run_steps(runtime, 500)
        assert mark.exists()
        if what not in ("exit", "hang"):
            assert "env 'support.faulty_env:Faulty'" in notices[0]
            assert sum("Traceback" in line for line in notices) == what.startswith("raise")
        checked_ledger(runtime)


@pytest.mark.parametrize("inference", ["local", "central"])
def test_observations_outside_their_space_cause_one_warning(inference):
    with running(
        "env.id=support.faulty_env:Faulty", "env.args={what: far_obs, when: 30}", f"inference={inference}"
    ) as runtime:
        notices = run_until_notice(runtime, "warning:")
        notices += run_steps(runtime, 500)
    assert [line.partition(" (env")[0] for line in notices] == [
        "warning: env 'support.faulty_env:Faulty' gave 1000 in its observation, where its space has 0 to 1"
    ]


@pytest.mark.parametrize("inference", ["local", "central"])
def test_non_finite_observation_drops_only_its_episode(tmp_path, inference):
    args = f"{{what: nan_obs, when: 30, once: {tmp_path / 'done'}}}"
    with running("env.id=support.faulty_env:Faulty", f"env.args={args}", f"inference={inference}") as runtime:
        notices = run_until_notice(runtime, "its episode was dropped")
        run_steps(runtime, 500)
        assert [line.partition(" (env")[0] for line in notices] == [
            "env 'support.faulty_env:Faulty' gave NaN in its observation"
        ]
        assert runtime.drain_metrics()["envs/dropped"] == 1
        checked_ledger(runtime)


def test_env_that_always_raises_ends_the_run_with_its_traceback_once():
    with running(
        "env.id=support.faulty_env:Faulty", "env.args={what: raise_step, when: 3}", "supervision.restarts=1"
    ) as runtime:
        notices: list[str] = []
        with pytest.raises(RunFailedError):
            notices.extend(line for _ in runtime.rounds for line in runtime.notices())
        notices += runtime.notices()
    assert 1 <= sum("Traceback" in line for line in notices) <= 2  # the two actors may report it for different envs
    assert any("given up after repeated crashes" in line for line in notices)


def children(parent: int) -> set[int]:
    """All live descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    grown = {parent}
    while grown:
        grown = {child for child, above in parents.items() if above in grown} - found
        found |= grown
    return found


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def alive(pids: set[int]) -> set[int]:
    living = set()
    for number in pids:
        try:
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                living.add(number)
        except OSError:
            continue
    return living


def workers_of(parent: int) -> list[int]:
    return [pid for pid in children(parent) if name_of(pid).startswith("starling ")]


@pytest.mark.parametrize(
    ("settings", "workers"),
    [
        pytest.param(["inference=central", "eval.every=1000000"], 3, marks=pytest.mark.slow),
        pytest.param(["learners=2"], 4, marks=pytest.mark.slow),
        pytest.param(["runtime=ray"], 2, marks=[pytest.mark.slow, pytest.mark.ray]),
        pytest.param(["learners=2"], 1, id="while-workers-start"),
    ],
)
def test_nothing_survives_the_main_process(tmp_path, settings, workers, request):
    temporary = Path(tempfile.mkdtemp())  # `tmp_path` is too long for the path of a socket
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    overrides = [*SMALL, *settings, "stop.env_steps=100000000", "log.every=500"]
    command = [sys.executable, "-m", "starling", "train", "impala-cartpole", *overrides, "--runs", str(tmp_path / "a")]
    output: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    folders = dict.fromkeys(("TMPDIR", "RAY_TMPDIR"), str(temporary))
    process = subprocess.Popen(command, **output, env={**os.environ, **folders})
    try:
        end = time.monotonic() + TIMEOUT
        while len(worker_pids := workers_of(process.pid)) < workers:
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.05)
        descendants = children(process.pid)
        os.kill(max(worker_pids), signal.SIGSTOP)  # a stopped child must end, too
        assert list(temporary.iterdir()), "the fork server has no socket there"
    finally:
        process.kill()
        process.wait()
    killed = time.monotonic()
    while alive(descendants) or list(temporary.iterdir()):
        assert time.monotonic() < killed + TIMEOUT, (alive(descendants), list(temporary.iterdir()))
        time.sleep(0.05)
    print(f"gone after {time.monotonic() - killed:.2f} s")


def test_status_has_every_worker_and_what_is_under_way():
    with running() as runtime:
        run_steps(runtime, 200)
        runtime.status()  # shares of time are those since the last look
        run_steps(runtime, 200)
        status = runtime.status()
        (hub,) = status.hubs
        assert [worker.name for worker in hub.workers] == ["learner", "actor 0", "actor 1"]
        assert (status.updates, status.env_steps) >= (1, 400)
        assert status.publish_ms > 0
        for worker in hub.workers[1:]:
            assert worker.state == "running"
            assert worker.steps_per_s > 0
            assert 0 < worker.busy + worker.wait_in + worker.wait_out < 2, "the counters are not read at one moment"
            assert 0 < worker.weights <= status.updates
            assert worker.bytes_out > 0
        assert hub.lent + hub.free > 0
        os.kill(pid(runtime, "actor 1"), signal.SIGKILL)
        run_until_notice(runtime, "actor 1 died")
        (dead,) = [worker for worker in runtime.status().hubs[0].workers if worker.name == "actor 1"]
        assert (dead.crashes, dead.last_end) == (1, "killed by SIGKILL")


def test_no_file_descriptors_are_leaked():
    with running() as runtime:  # the fork server keeps some descriptors
        run_steps(runtime, 100)
    del runtime
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with running("inference=central") as runtime:
            run_steps(runtime, 100)
        del runtime
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


@pytest.mark.slow
def test_ctrl_c_is_handled_by_the_main_process_only(tmp_path):
    """A terminal sends SIGINT to the whole group: the run is saved, it exits with 0, and no worker prints an error."""
    overrides = [*SMALL, "inference=central", "stop.env_steps=100000000", "log.every=500", "run=a"]
    command = [sys.executable, "-m", "starling", "train", "impala-cartpole", *overrides, "--runs", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        rows = tmp_path / "a" / "metrics.jsonl"
        end = time.monotonic() + TIMEOUT
        while not rows.exists() or not rows.read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "died" not in said
    assert list((tmp_path / "a" / "checkpoints").glob("step-*"))


def test_run_is_saved_even_if_the_hub_is_blocked():
    release, done = threading.Event(), threading.Event()
    with running() as runtime:
        run_steps(runtime, 100)
        runtime.hub.post(lambda: (release.wait(TIMEOUT), done.set()))
        runtime.hub.fail(RunFailedError("nobody answers"))
        runtime.halt()
        assert runtime.save(with_tables=True)["store"]["env_steps"] >= 100
        assert not done.is_set()
        with pytest.raises(RunFailedError, match="nobody answers"):
            run_steps(runtime, 1)
        release.set()
