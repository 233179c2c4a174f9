"""`starling top` and `starling doctor`: live and dead runs, from the files in their folders alone."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from support.run_status import runtime_status, worker

import starling
from starling.api import Quiet
from starling.cli import top
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.prometheus import MetricsServer, text_of
from starling.experiment.run_folder.folder import create
from starling.experiment.run_folder.rows import LONGEST_LINE
from starling.experiment.status import StatusWriter, read_status
from starling.experiment.train import branch, resume

BALANCED = {"ledger/produced": 100, "ledger/inserted": 90, "ledger/open": 10, "ledger/lost": 0}


@pytest.fixture
def run(tmp_path):
    return create(tmp_path, load("ppo-cartpole", ["run=mine"]))


def write(run, *workers, ended=None, phase="training", row=BALANCED, changes=None, **hub):
    """Write the status and a row of metrics of this process, with `changes` to the status in the file."""
    writer = StatusWriter(run.path, lambda: runtime_status(*workers, **hub))
    writer.enter(phase)
    writer._write(False) if ended is None else writer.close(ended)
    run.metrics_file.write_text(json.dumps({"env_steps": 90, **row}) + "\n")
    file = run.path / "status.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | (changes or {})))
    return writer.newest


def gone():
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_top_shows_every_worker_and_names_the_slowest(run, in_process):
    slow = worker("actor 1", steps_per_s=10.0, busy=0.25, wait_in=0.5, wait_out=0.25, weights=50, bytes_out=2_500_000)
    write(run, worker(steps_per_s=100.0), slow, worker("learner"), acting_waits="the queue is full")
    code, out, err = in_process("top", run.path, "--once")
    assert (code, err) == (0, "")
    assert "acting waits:   the queue is full" in out
    assert "credits in flight 3" in out
    (line,) = [line for line in out.splitlines() if line.startswith("actor 1")]
    assert line.split() == ["actor", "1", "running", "25%", "50%", "25%", "10", "6", "-", "2.5", "MB", "0"]
    assert out.splitlines()[-1] == "slowest: actor 1 with 10 steps/s; the mean is 55"
    _, out, _ = in_process("top", run.path, "--workers", "1")
    assert "and 2 more" in out
    assert "actor 1" in out
    assert "actor 0" not in out


def test_top_in_a_terminal_goes_on_to_the_end_of_the_run(run, in_process, monkeypatch):
    write(run, worker())
    monkeypatch.setattr(top.sys.stdout.__class__, "isatty", lambda self: True, raising=False)
    monkeypatch.setattr(
        top.time, "sleep", lambda seconds: write(run, worker(state="stopped"), ended="ended: of itself")
    )
    code, out, _ = in_process("top", run.path)
    assert code == 0
    if top.CLEAR in out:
        assert out.count(top.CLEAR) == 2


def test_top_of_a_killed_run_says_that_it_is_the_last_status(run, in_process):
    write(run, worker(), worker("actor 1", state="waits for its start"), changes={"pid": gone()})
    _, out, _ = in_process("top", run.path)
    lines = out.splitlines()
    assert "is gone without an end; this is its last status" in lines[1]
    assert lines[2].startswith("it was training; written ")
    assert [line.split()[2] for line in lines if line.startswith("actor")] == ["gone", "gone"]
    assert lines[-1] == f"why, and what to do: starling doctor {run.path}"


def test_top_of_an_ended_run_shows_no_worker_at_work(run, in_process):
    workers = [worker(), worker("actor 1", state="waits for its start"), worker("actor 2", state="given up")]
    write(run, *workers, ended="ended: of itself", changes={"started": time.time() - 90, "written": time.time() - 30})
    _, out, _ = in_process("top", run.path)
    assert out.splitlines()[1] == "ended: of itself; 0:00:30 ago, after 0:01:00"
    assert "acting waits" not in out
    states = [line.split("  ")[1] for line in out.splitlines() if line.startswith("actor")]
    assert sorted(states) == ["given up", "stopped", "stopped"]


def test_resume_that_has_nothing_to_do_leaves_the_status(tmp_path):
    settings = ["env.num=2", "algo.learning_starts=100", "algo.fragment=16", "stop.env_steps=200", "run=short"]
    run = starling.train("dqn-cartpole", settings, runs=tmp_path).folder
    before = read_status(run)
    resume(run, Quiet())
    assert read_status(run) == before
    assert before.ended


def test_status_that_is_damaged_or_missing_is_one_line(run, in_process):
    assert in_process("top", run.path)[0] == 2
    for content in ("{", "[]", '{"written": NaN}', "[" * 5000, '{"written": 1e999, "runtime": {}}'):
        (run.path / "status.json").write_text(content)
        code, _, err = in_process("top", run.path)
        assert code == 2, content
        assert "damaged" in err
        assert len(err.splitlines()) == 1


def test_texts_of_a_status_are_escaped(run, in_process):
    write(run, worker("actor \x1b[31m"), acting_waits="\x1b]0;title\x07")
    for command in ("top", "doctor"):
        assert "\x1b" not in in_process(command, run.path)[1]


def test_healthy_run_has_no_problem(run, in_process):
    write(run, worker(steps_per_s=90.0), worker("actor 1", steps_per_s=100.0))
    code, out, err = in_process("doctor", run.path)
    assert (code, err) == (0, ""), out
    assert f"process {os.getpid()}" in out
    assert "100 steps produced = 90 inserted + 10 open + 0 lost" in out
    assert out.splitlines()[-1] == "nothing is wrong"


@pytest.mark.parametrize(
    ("status", "about", "words"),
    [
        ({"changes": {"pid": None}}, "process", ["gone without an end", "kill -9", "starling resume"]),
        ({"changes": {"written": 1000.0, "started": 999.0}}, "process", ["no status for", "SIGSTOP"]),
        ({"changes": {"phase": "saving", "phase_seconds": 600.0}}, "process", ["saving for 600 s", "checkpoint.every"]),
        ({"silent_seconds": 40.0}, "process", ["the hub of rank 0", "40 s"]),
        ({"ended": "ended: failed: 0 of 2 actors are left"}, "process", ["0 of 2 actors", "starling logs"]),
        (
            {"workers": [worker(crashes=2, last_end="hung: no heartbeat")]},
            "workers",
            ["supervision.timeout", "--worker"],
        ),
        ({"workers": [worker(crashes=1, last_end="killed by SIGKILL")]}, "workers", ["no memory", "fewer actors"]),
        ({"workers": [worker(state="given up", crashes=6, last_end="x")]}, "workers", ["supervision.restarts"]),
        ({"workers": [worker(steps_per_s=1.0), worker("actor 1", steps_per_s=99.0)]}, "workers", ["actor 0 makes 1"]),
        (
            {"acting_waits": "A", "learning_waits": "B", "lent": 0, "batches_ready": 0},
            "waiting",
            ["wait for each other"],
        ),
        ({"row": BALANCED | {"warnings": "weights are 90 updates old"}}, "weights", ["90 updates old"]),
        ({"row": BALANCED | {"ledger/inserted": 80}}, "ledger", ["do not balance"]),
        ({"row": BALANCED | {"ledger/inserted": 60, "ledger/lost": 30}}, "ledger", ["30.0%", "algo.fragment"]),
    ],
)
def test_problem_has_a_cause_and_something_to_change(run, in_process, status, about, words):
    if status.get("changes", {}).get("pid", 0) is None:
        status = {"changes": {"pid": gone()}}
    write(run, *status.pop("workers", [worker()]), **status)
    code, out, _ = in_process("doctor", run.path, "--json")
    assert code == 1
    problems = [finding for finding in json.loads(out.splitlines()[-1]) if finding["problem"]]
    assert [problem["about"] for problem in problems] == [about], problems
    text = " ".join(str(value) for value in problems[0].values())
    assert all(word in text for word in words), text
    code, out, _ = in_process("doctor", run.path)
    assert code == 1
    assert out.splitlines()[-2] == f"likely cause: {problems[0]['cause']}"


def test_killed_run_says_how_far_it_came(run, in_process):
    write(run, worker(), changes={"pid": gone()})
    run.log("run: runs/mine")
    _, out, _ = in_process("doctor", run.path)
    assert "its last known env step is 1,234, and it has no checkpoint" in out
    assert "run: runs/mine" not in out


def test_waits_of_a_healthy_run_are_said_to_be_normal_for_each_rank(run, in_process):
    def status():
        one = runtime_status(worker(), acting_waits="A")
        return replace(one, hubs=[*one.hubs, replace(one.hubs[0], rank=1)])

    StatusWriter(run.path, status)._write(False)
    code, out, _ = in_process("doctor", run.path)
    assert code == 0
    for rank in (0, 1):
        assert f"rank {rank}: acting waits: A (normal: the faster side waits" in out


def test_damage_is_a_finding_beside_the_others(run, in_process):
    write(run, worker())
    (run.path / "status.json").write_text("{")
    with run.metrics_file.open("a") as file:
        file.write("x" * (LONGEST_LINE + 1))
    code, out, err = in_process("doctor", run.path)
    assert (code, err) == (1, "")
    assert "PROBLEM process" in out
    assert "status.json is damaged" in out
    assert "PROBLEM ledger" in out
    assert "100 steps produced = 90 inserted" in out
    assert "checkpoints none yet" in out
    assert "no status.json" not in out


def test_checkpoints_are_verified(run, in_process):
    write(run, worker())
    broken = run.checkpoints / "step-000000000100"
    broken.mkdir(parents=True)
    code, out, _ = in_process("doctor", run.path)
    assert code == 1
    assert "step-000000000100" in out
    assert "none is valid" in out


def test_status_is_written_while_the_main_loop_is_stuck(run):
    writer = StatusWriter(run.path, runtime_status)
    writer.start()
    try:
        end = time.monotonic() + 60
        while (status := read_status(run.path)) is None or status.phase_seconds < 0.001:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        writer.close("ended: by this test")
    status = read_status(run.path)
    assert status.ended
    assert status.phase == "ended: by this test"


def test_prometheus_gets_numbers_on_loopback_only():
    row = {"env_steps": 90, "loss/policy": 0.5, "time/bottleneck": "a text", "return": None}
    server = MetricsServer(0, lambda: row, lambda: None)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = answer.read().decode().splitlines()
        assert [line for line in lines if not line.startswith("#")] == [
            "starling_env_steps 90",
            "starling_loss_policy 0.5",
        ]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/")
        with pytest.raises(UserError, match=r"log\.prometheus"):
            MetricsServer(server.port, dict, lambda: None)
    finally:
        server.close()


def test_busy_port_is_refused_before_there_is_a_folder(run, tmp_path):
    server = MetricsServer(0, dict, lambda: None)
    busy, runs = f"log.prometheus={server.port}", tmp_path / "new"
    try:
        with pytest.raises(UserError, match=r"log\.prometheus.*another port"):
            starling.train("ppo-cartpole", [busy], runs=runs)
        with pytest.raises(UserError, match=r"log\.prometheus.*another port"):
            branch(run.path, load("ppo-cartpole", [busy]), runs, Quiet())
    finally:
        server.close()
    assert not runs.exists()


def test_prometheus_gets_every_worker(run):
    status = write(run, worker('actor "0"', busy=0.5), worker("actor 1", state="hung"))
    lines = text_of({}, status).splitlines()
    labels = 'rank="0",worker="actor \\"0\\"",kind="actor",node=""'
    assert f"starling_worker_busy{{{labels}}} 0.5" in lines
    assert f"starling_worker_up{{{labels}}} 1" in lines
    assert 'starling_hub_lent{rank="0"} 3' in lines
    assert sum(line.startswith("starling_worker_up") for line in lines) == 2
    assert lines.count("# TYPE starling_worker_up gauge") == 1
