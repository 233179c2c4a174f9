"""benchmarks/run_queue.py: real runs, stopped and continued, each recorded once."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder.folder import RunFolder, create
from starling.experiment.run_folder.metrics import read_rows
from starling.tools.results.from_run import end_of, is_finished, training_minutes, training_score
from starling.tools.results.records import Result, append, read

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "run_queue.py"
TIMEOUT = 240
"""Seconds within which a busy machine does what it should."""
TINY = ["ppo-cartpole", "stop.env_steps=600", "stop.return=null"]
OTHER = ["dqn-cartpole", "stop.env_steps=300"]


@pytest.fixture
def queue(tmp_path):
    """`queue(arguments)`: the process of a queue whose runs and results are in `tmp_path`."""
    started = []

    def start(*arguments):
        command = [sys.executable, SCRIPT, "--runs", tmp_path / "runs", "--results", tmp_path / "r.jsonl", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        started.append(subprocess.Popen(list(map(str, command)), **pipes))
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.terminate()  # so that it ends its own processes
        process.communicate(timeout=TIMEOUT)


@pytest.fixture
def done(queue):
    """`done(arguments)`: exit code, stdout, and stderr of a queue that has ended."""

    def run(*arguments):
        process = queue(*arguments)
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out, err

    return run


@pytest.fixture
def in_process(monkeypatch, capsys, tmp_path):
    """`in_process(arguments)`: exit code and stderr of the command, run in this process."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("run_queue", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_queue", module)
    spec.loader.exec_module(module)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["run_queue.py", *map(str, arguments)])
        try:
            code = module.main()
        except SystemExit as ended:
            code = ended.code
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--job", "ppo-cartpole"], "--runs"),
        (["--runs", "/tmp/x"], "name a file of jobs, or jobs with --job PRESET"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpol"], "did you mean 'ppo-cartpole'"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpole", "sede=1"], "unknown key 'sede'"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpole", "seed=1"], "seed=1 cannot be an override here"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpole", "--seeds", "x"], "--seeds x: give a number of seeds"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpole", "--seeds", "3,"], "--seeds 3,: give a number of seeds"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpole", "--seeds", "0"], "--seeds 0: give a number of seeds"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpole", "--seeds=1,-1"], "--seeds 1,-1: give a number of seeds"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpole", "--jobs", "0"], "--jobs 0"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpole", "--evaluate", "-1"], "--evaluate -1"),
        (["--runs", "/tmp/x", "--job", "ppo-cartpole", "--protocol", "mine"], "invalid choice"),
        (["--runs", SCRIPT.parent / "runs", "--job", "ppo-cartpole"], "is inside the repository"),
        (["--runs", "/dev/null/x", "--job", "ppo-cartpole"], "cannot make /dev/null/x: Not a directory"),
        (["--runs", "/tmp/x", "/nowhere.yaml"], "cannot read /nowhere.yaml: No such file"),
    ],
)
def test_invalid_input_is_a_one_line_error(in_process, arguments, message):
    code, complaint = in_process(*arguments)
    assert code == 2
    assert message in complaint
    assert len(complaint.splitlines()) == 1
    assert complaint.startswith("error: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not valid YAML"),
        ("preset: ppo-cartpole", "must be a list of jobs"),
        ("[]", "lists no jobs"),
        ("- {preset: 3}", "job 1: preset must name a preset"),
        (
            "- {preset: ppo-cartpole}\n- {preset: ppo-cartpole, seed: 3}",
            "job 2: unknown key 'seed'; did you mean 'seeds'",
        ),
        ("- {preset: ppo-cartpole, overrides: stop.minutes=1}", "overrides must be a list of key=value"),
        ("- {preset: ppo-cartpole, seeds: []}", "seeds must be a number of seeds or a list of seeds"),
        ("- {preset: ppo-cartpole, seeds: true}", "seeds must be a number of seeds or a list of seeds"),
        ("- {preset: ppo-cartpole, seeds: 0}", "seeds must be a number of seeds or a list of seeds"),
    ],
)
def test_invalid_job_file_is_a_one_line_error(in_process, tmp_path, text, message):
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    code, complaint = in_process(file, "--runs", tmp_path / "runs")
    assert code == 2
    assert message in complaint
    assert len(complaint.splitlines()) == 1


def test_jobs_are_interleaved_and_unique(in_process):
    from run_queue import Job, checked, parse_seeds

    jobs = checked(
        [("ppo-cartpole", [], [0, 1]), ("dqn-cartpole", ["algo.double=true"], [3]), ("ppo-cartpole", [], [1])]
    )
    ppo, dqn = [Job("ppo-cartpole", (), seed) for seed in (0, 1)], Job("dqn-cartpole", ("algo.double=true",), 3)
    assert jobs == [ppo[0], dqn, ppo[1]]
    assert len({job.name for job in jobs}) == 3
    assert [parse_seeds(text) for text in ("3", "3-5", "4,0")] == [[0, 1, 2], [3, 4, 5], [4, 0]]


def test_help_has_an_example():
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run_queue.py --runs ~/runs --seeds 5 --job ppo-cartpole" in done.stdout


def test_minutes_are_summed_over_all_sessions():
    """The clock of each session starts at 0; the second may exceed the first one's last row at its first row."""

    def row(env_steps, start, speed):
        seconds = (env_steps - start) / speed
        return {"env_steps": env_steps, "time/seconds": round(seconds, 3), "time/steps_per_s": round(speed, 1)}

    whole = [row(steps, 0, 333.333) for steps in range(1_000, 90_001, 1_000)]
    assert training_minutes(whole) == pytest.approx(90_000 / 333.333 / 60, rel=1e-3)
    for first in (1, 45, 89):
        cut = 1_000 * first
        resumed = [row(steps, cut, 111.111) for steps in range(cut + 1_000, 90_001, 1_000)]
        expected = (cut / 333.333 + (90_000 - cut) / 111.111) / 60
        assert training_minutes(whole[:first] + resumed) == pytest.approx(expected, rel=1e-3)


def test_score_has_its_number_of_episodes():
    row = {"env_steps": 9, "return": 3.5, "episodes": 250}
    assert training_score([row]) == (3.5, "mean return of the last 100 training episodes")
    assert training_score([row | {"episodes": 7}]) == (3.5, "mean return of the last 7 training episodes")
    with pytest.raises(UserError, match="no episode ended in 9 env steps"):
        training_score([row | {"return": None}])


@pytest.mark.parametrize(
    ("lines", "finished"),
    [
        ([], False),
        (["run: a"], False),
        (["run: a", "finished: stop.env_steps=600 reached, 600 env steps, no score"], True),
        (["run: a", "finished: mean return 480.0 reached stop.return=475, 600 env steps, no score"], True),
        (["run: a", "finished: SIGINT received, 600 env steps, no score"], False),
        (["run: a", "finished: failed: diverged, 600 env steps, no score"], False),
        (["run: a", "finished: SIGINT received, 9 env steps", "resuming from b", "a line"], False),
        (["run: a", "finished: stop.env_steps=6 reached; failed: disk full, 600 env steps, no score"], False),
        (["run: a", "finished: SIGTERM received", "resuming from b", "finished: stop.minutes=1 reached, 9"], True),
    ],
)
def test_run_is_finished_only_at_its_stop_condition(tmp_path, lines, finished):
    folder = RunFolder(tmp_path)
    assert end_of(folder) is None
    for line in lines:
        folder.log(line)
    assert is_finished(folder) == finished


@pytest.mark.slow
def test_runs_are_recorded_once_with_their_scores(done, tmp_path):
    file, before = tmp_path / "jobs.yaml", time.strftime("%Y-%m-%d", time.gmtime())
    file.write_text(f"- {{preset: {TINY[0]}, overrides: {json.dumps(TINY[1:])}, seeds: 2}}\n")
    code, out, err = done(file, "--seeds", "1", "--jobs", "2", "--job", *OTHER)
    assert (code, err) == (0, "")
    assert "3 runs to do, 0 recorded already" in out
    assert "3 recorded, 0 not finished, 0 not started" in out
    results = {result.job: result for result in read(tmp_path / "r.jsonl")}
    ppo, dqn = (TINY[0], tuple(TINY[1:])), (OTHER[0], tuple(OTHER[1:]))
    assert results.keys() == {(*ppo, 0), (*ppo, 1), (*dqn, 0)}
    for (preset, _, seed), result in results.items():
        (run,) = [RunFolder(path) for path in (tmp_path / "runs").glob(f"{preset}-*-seed{seed}")]
        last = read_rows(run.metrics_file)[-1]
        assert (run.config().seed, run.config().threads) == (seed, 1)
        assert result.score == pytest.approx(last["return"], abs=1e-3)
        assert result.protocol == f"mean return of the last {last['episodes']} training episodes"
        assert result.env_steps == last["env_steps"] == result.curve[-1][0]
        assert result.minutes == pytest.approx(last["time/seconds"] / 60, abs=1e-3)
        assert {"python", "torch", "starling-rl"} <= result.versions.keys()
        assert result.machine["cores"] >= 1
        assert before <= result.date <= time.strftime("%Y-%m-%d", time.gmtime())
        assert result.note == "2 runs at once, threads=1"
    code, out, err = done(file, "--seeds", "1", "--jobs", "2", "--job", *OTHER)
    assert (code, err) == (0, "")
    assert "0 runs to do, 3 recorded already" in out
    assert len(read(tmp_path / "r.jsonl")) == 3


@pytest.mark.slow
def test_ctrl_c_saves_the_runs_and_the_same_command_continues_them(queue, done, tmp_path):
    expected_error = [
        "--seeds",
        "2",
        "--jobs",
        "2",
        "--job",
        "ppo-cartpole",
        "stop.env_steps=20000",
        "stop.return=null",
    ]
    process = queue(*expected_error)
    deadline = time.monotonic() + TIMEOUT
    while len(started := [file for file in (tmp_path / "runs").glob("*/metrics.jsonl") if file.stat().st_size]) < 2:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, err) == (0, "")
    assert "2 not finished" in out
    assert "SIGINT received: the same command continues" in out
    assert read(tmp_path / "r.jsonl") == []
    stopped = {file: read_rows(file)[-1] for file in started}
    for file, row in stopped.items():
        assert end_of(RunFolder(file.parent)).startswith("SIGINT received")
        assert (file.parent / "checkpoints" / f"step-{row['env_steps']:012}").is_dir()
        assert row["env_steps"] < 20_000
    code, out, err = done(*expected_error)
    assert (code, err) == (0, "")
    assert out.count(": continues\n") == 2
    results = read(tmp_path / "r.jsonl")
    assert sorted(result.seed for result in results) == [0, 1]
    assert len(list((tmp_path / "runs").glob("*/metrics.jsonl"))) == 2, "in their own folders"
    seconds = sorted(row["time/seconds"] + read_rows(file)[-1]["time/seconds"] for file, row in stopped.items())
    assert sorted(60 * result.minutes for result in results) == pytest.approx(seconds, abs=0.1)
    assert all(20_000 <= result.env_steps < 20_100 for result in results)


@pytest.mark.slow
def test_failed_run_does_not_prevent_others_from_being_recorded(done, tmp_path, monkeypatch):
    """One run at a time; a run without a checkpoint starts again in another folder."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    faulty = [
        "ppo-cartpole",
        "env.id=support.faulty_env:Faulty",
        "env.args={what: raise_step, when: 5}",
        "stop.env_steps=600",
    ]
    expected_error = ["--seeds", "3-3", "--jobs", "1", "--job", *faulty, "--job", *TINY, "--evaluate", "2"]
    code, out, err = done(*expected_error)
    assert (code, err) == (1, "")
    assert "support.faulty_env:Faulty" in out
    assert "ended with code 1: error: " in out
    assert "1 recorded, 1 not finished, 0 not started" in out
    (result,) = read(tmp_path / "r.jsonl")
    assert result.job == (TINY[0], tuple(TINY[1:]), 3)
    assert result.protocol == "mean of 2 evaluation episodes, likeliest actions"
    assert result.note == ""
    code, out, _ = done(*expected_error)
    assert code == 1
    assert "1 runs to do, 1 recorded already" in out
    assert len(list((tmp_path / "runs").glob("*/config.yaml"))) == 3


@pytest.mark.slow
def test_run_with_other_settings_is_not_continued(done, tmp_path):
    expected_error = ["--seeds", "1", "--jobs", "1", "--job", *TINY]
    assert done(*expected_error)[0] == 0
    (config,) = (tmp_path / "runs").glob("*/config.yaml")
    config.write_text(config.read_text().replace("epochs: 10", "epochs: 9"))
    (tmp_path / "r.jsonl").unlink()
    code, out, _ = done(*expected_error)
    assert code == 1
    assert f"{config.parent} has other settings than the preset has now (algo.epochs); move it away" in out


def test_damaged_results_file_is_a_one_line_error(in_process, tmp_path):
    file = tmp_path / "r.jsonl"
    append(Result("ppo-cartpole", (), 0, 1, None, 1.0, "mean", {}, "here"), file)
    file.write_bytes(file.read_bytes() + b"{\n")
    code, complaint = in_process("--runs", tmp_path / "runs", "--results", file, "--job", "ppo-cartpole")
    assert code == 2
    assert complaint.startswith(f"error: {file} line 2 is damaged")
    assert len(complaint.splitlines()) == 1


def test_precision_chosen_for_the_machine_is_no_other_setting(in_process, tmp_path):
    from run_queue import Job, check_settings

    job = Job("ppo-cartpole", ("precision=auto",), 0)
    folder = create(tmp_path, load("ppo-cartpole", ["precision=bfloat16", "seed=0"]))
    check_settings(job, folder)
    with pytest.raises(UserError, match=r"other settings than the preset has now \(precision\)"):
        check_settings(Job("ppo-cartpole", ("precision=float32",), 0), folder)
