"""`starling logs`: lines of a run and its workers, merged by time."""

import os

import pytest
from support.run_status import runtime_status, worker

from starling.cli import logs
from starling.config.load import load
from starling.experiment.run_folder.folder import create
from starling.experiment.run_folder.worker_logs import MOST_BYTES, WorkerLogs, read_lines
from starling.experiment.status import StatusWriter

HOUR = "2026-01-01 10:00"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    logs.time.tzset()
    place = create(tmp_path, load("ppo-cartpole", ["run=mine"]))
    place.log_file.write_text(f"{HOUR}:02 actor 1 died (hung): restarting it in 0.5 s\n{HOUR}:09 finished: of itself\n")
    write(place, "actor 1", "one", "two \x1b[31m")
    write(place, "actor 10", "ten")
    return place


def write(place, worker, *texts, seconds=1.25):
    at = 1767261600.0 + seconds
    WorkerLogs(place.path).write(worker, [(at + i, text) for i, text in enumerate(texts)])


def test_lines_of_all_are_merged_by_time_and_escaped(run, in_process):
    code, out, err = in_process("logs", run.path)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{HOUR}:01.250  actor-1: one",
        f"{HOUR}:01.250  actor-10: ten",
        f"{HOUR}:02  run: actor 1 died (hung): restarting it in 0.5 s",
        f"{HOUR}:02.250  actor-1: two \\x1b[31m",
        f"{HOUR}:09  run: finished: of itself",
    ]
    assert in_process("logs", run.path, "--last", "1")[1] == f"{HOUR}:09  run: finished: of itself\n"


def test_lines_of_one_worker_and_what_the_run_says_of_it(run, in_process):
    _, out, _ = in_process("logs", run.path, "--worker", "actor 1")
    assert [line.split("  ", 1)[1].split(":")[0] for line in out.splitlines()] == ["actor-1", "run", "actor-1"]
    _, out, _ = in_process("logs", run.path, "--worker", "actor")
    assert len(out.splitlines()) == 4, "all actors"
    code, _, err = in_process("logs", run.path, "--worker", "actor 2")
    assert code == 2
    assert "no worker 'actor 2'; did you mean" in err
    assert "(known: run, actor-1, actor-10)" in err


def test_worker_that_has_printed_nothing_is_no_error(run, in_process):
    StatusWriter(run.path, lambda: runtime_status(worker("actor 2"))).close("ended: of itself")
    assert in_process("logs", run.path, "--worker", "actor 2") == (0, "actor 2 has printed nothing\n", "")
    code, _, err = in_process("logs", run.path, "--worker", "actr 2")
    assert code == 2
    assert "(known: run, actor-1, actor-10, actor-2)" in err


def test_name_of_the_run_comes_once(run, in_process):
    run.log_file.write_text(f"{HOUR}:00 run: runs/mine\n")
    assert in_process("logs", run.path, "--worker", "run")[1] == f"{HOUR}:00  run: runs/mine\n"


def test_new_lines_follow_until_ctrl_c(run, in_process, monkeypatch):
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt
        write(run, "actor 1", f"look {len(looks)}", seconds=20 + len(looks))
        os.utime(run.path / "logs" / "actor-1.log", (len(looks), 2**31 + len(looks)))

    monkeypatch.setattr(logs.time, "sleep", sleep)
    code, out, _ = in_process("logs", run.path, "--worker", "actor 1", "--last", "1", "--follow")
    assert code == 0
    assert [line.rsplit(": ", 1)[1] for line in out.splitlines()] == ["two \\x1b[31m", "look 1", "look 2"]


def test_logs_are_bounded_and_the_newest_lines_are_kept(run):
    for i in range(40):
        write(run, "actor 5", *[f"{i} {'x' * 1000}"] * 100)
    files = sorted((run.path / "logs").glob("actor-5*"))
    assert [file.name for file in files] == ["actor-5.log", "actor-5.old.log"]
    assert all(file.stat().st_size <= MOST_BYTES for file in files)
    lines = read_lines(run.path, "actor-5")
    assert len(lines) > 500
    assert lines[-1].text.startswith("39 ")


def test_the_newest_of_a_first_batch_that_is_too_large_is_kept(run):
    write(run, "actor 6", *[f"{i} {'x' * 1000}" for i in range(1200)])
    assert (run.path / "logs" / "actor-6.log").stat().st_size == MOST_BYTES
    assert read_lines(run.path, "actor-6")[-1].text.startswith("1199 ")


def test_logs_that_are_too_large_together_are_refused(run, in_process, monkeypatch):
    monkeypatch.setattr("starling.experiment.run_folder.worker_logs.MOST_MERGED", 50)
    code, _, err = in_process("logs", run.path)
    assert code == 2
    assert "name workers with --worker" in err


def test_a_link_in_the_place_of_a_log_is_not_followed(run, tmp_path):
    target = tmp_path / "precious"
    target.write_text("mine")
    (run.path / "logs" / "actor-7.log").symlink_to(target)
    write(run, "actor 7", "overwritten")
    assert target.read_text() == "mine"
    assert read_lines(run.path, "actor-7") == []


def test_run_without_workers_is_no_error(tmp_path, in_process):
    place = create(tmp_path, load("ppo-cartpole", ["run=other"]))
    assert in_process("logs", place.path) == (0, "no lines yet\n", "")
