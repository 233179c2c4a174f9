"""The progress display: on a terminal, in a pipe, and without any reader."""

import os
import re
import select
import shlex
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from starling.cli.progress import SILENCE, Progress
from starling.config.load import load
from starling.experiment.display import Status


def make_row(env_steps, score=200.0, **more):
    return {
        "env_steps": env_steps,
        "updates": env_steps // 10,
        "episodes": 12,
        "return": score,
        "loss/policy": -0.01234,
        "store/replay/size": 3900,
        "store/replay/cells": 4000,
        "store/replay/capacity": 100_000,
        "time/steps_per_s": 2000.0,
        **more,
    }


def make_status(env_steps, score=200.0, frames=1, **more):
    return Status(env_steps, env_steps // 10, 12, score, 2000.0, 2000.0 * frames, make_row(env_steps, score, **more))


class Terminal:
    """A real pseudo-terminal."""

    def __init__(self):
        self._master, slave = os.openpty()
        self.stream = open(slave, "w", encoding="utf-8")  # noqa: SIM115

    def read(self):
        """New output without control sequences; the kernel delivers it with a small delay."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.read_raw()).replace("\r", "")

    def read_raw(self):
        raw = b""
        while select.select([self._master], [], [], 0.1)[0]:
            raw += os.read(self._master, 65536)
        return raw.decode()

    def hang_up(self):
        os.close(self._master)
        self._master = None

    def close(self):
        self.stream.close()
        if self._master is not None:
            self.hang_up()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "30")
    opened = Terminal()
    yield opened
    opened.close()


def test_terminal_shows_a_bar_with_numbers_below(terminal):
    with Progress(load("dqn-cartpole", ["stop.return=475", "stop.env_steps=10000"]), terminal.stream) as progress:
        progress.message("run: runs/[red]mine")
        assert terminal.read() == "run: runs/[red]mine\n"
        progress.tick(make_status(5000, frames=4))
        bar, counts, learning = terminal.read().splitlines()
    assert re.fullmatch(r"CartPole-v1 dqn   ━+─+  50%   5,000 of 10,000 steps   elapsed 0:00:0\d   left 0:00:02", bar)
    assert len(bar) == 120
    assert counts.split("   ") == [
        "return 200.0 (target 475)",
        "episodes 12",
        "updates 500",
        "steps/s 2,000",
        "frames/s 8,000",
    ]
    assert learning.split("   ") == ["policy -0.0123", "replay 4.0% of 100,000 steps"]


def test_losses_and_evaluations_stay_until_the_next_ones(terminal):
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as progress:
        progress.row(make_row(100, **{"eval/return": 33.0}))
        without = make_row(200)
        del without["loss/policy"]
        progress.row(without)
        assert terminal.read() == ""
        progress.tick(Status(300, 30, 3, 1.0, 9.0, 9.0, without))
        assert "eval 33.0   policy -0.0123" in terminal.read()


def test_last_row_stays_on_the_screen(terminal):
    progress = Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream)
    progress.tick(make_status(99_000))
    progress.row(make_row(100_000))
    terminal.read()
    progress.close()
    assert "100%   100,000 of 100,000 steps" in terminal.read()
    progress.close()
    progress.tick(make_status(300))
    progress.message("too late")
    assert terminal.read() == ""


def test_messages_are_printed_above_the_bar_and_not_wrapped(terminal):
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as progress:
        progress.tick(make_status(100))
        terminal.read()
        progress.message("resuming from " + "x" * 150)
        text = terminal.read()
    assert text.index("resuming") < text.index("CartPole-v1")
    assert "x" * 150 in text


@pytest.mark.parametrize("width", [20, 60, 90])
def test_no_value_is_wrapped_on_a_narrow_terminal(terminal, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as progress:
        progress.tick(make_status(100))
        lines = terminal.read().splitlines()
    assert max(map(len, lines)) <= width
    for fact in ("left 0:00:50", "episodes 12", "steps/s 2,000", "policy -0.0123"):
        assert any(fact in line for line in lines)


def test_no_color_is_respected(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as progress:
        progress.tick(make_status(50_000))
    raw = terminal.read_raw()
    assert "━" in raw
    assert "\x1b[36m" not in raw


def test_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as progress:
        progress.tick(make_status(100))
        assert terminal.read() == ""
        progress.row(make_row(100))
        assert terminal.read().count("\n") == 1


def test_closed_terminal_does_not_end_the_run(terminal):
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as progress:
        progress.tick(make_status(100))
        terminal.hang_up()
        for step in range(200, 500, 100):
            progress.tick(make_status(step))
            progress.row(make_row(step))
            progress.message("still there?")
    terminal.stream.write("nobody hears this, nobody minds")
    terminal.stream.flush()


def test_pipe_gets_one_line_per_row_with_the_same_labels(tmp_path):
    config = load("dqn-cartpole", ["stop.env_steps=10000"])
    path = tmp_path / "out"
    with path.open("w") as stream, Progress(config, stream) as progress:
        progress.message("run: here")
        progress.row(make_row(100, score=None))
        many = {"loss/arm/7/return": 1.0}  # a detail that is only in the files
        progress.row(make_row(5000, score=3.25, **many, **{"time/frames_per_s": 8000.0}))
    message, first, second = path.read_text().splitlines()
    assert message == "run: here"
    assert first == (
        "steps    100   1%  return       -  episodes     12  steps/s  2,000  left 0:00:05  policy -0.0123  updates 10"
        "  replay 4.0% of 100,000 steps"
    )
    assert second == (
        "steps  5,000  50%  return    3.25  episodes     12  steps/s  2,000  left 0:00:02  policy -0.0123  updates 500"
        "  frames/s 8,000  replay 4.0% of 100,000 steps"
    )


def lines_of(path, config, *rows):
    with path.open("w") as stream, Progress(config, stream) as progress:
        for row in rows:
            progress.row(row)
    return path.read_text().splitlines()


@pytest.fixture
def every_row(monkeypatch):
    monkeypatch.setattr("starling.cli.progress.MOST_OFTEN", 0.0)


def test_file_has_the_first_and_the_last_of_rows_that_come_at_once(tmp_path):
    config = load("dqn-cartpole", ["stop.env_steps=10000"])
    lines = lines_of(tmp_path / "out", config, *(make_row(step) for step in range(100, 400)))
    assert [line.split()[1] for line in lines] == ["100", "399"]


@pytest.mark.usefixtures("every_row")
def test_file_has_no_line_twice(tmp_path):
    config = load("dqn-cartpole", ["stop.env_steps=10000"])
    lines = lines_of(tmp_path / "out", config, *(make_row(step) for step in (100, 100, 200, 200)))
    assert [line.split()[1] for line in lines] == ["100", "200"]


@pytest.mark.usefixtures("every_row")
def test_line_keeps_the_last_evaluation_and_reserves_space_for_the_first(tmp_path):
    config = load("ppo-cartpole", ["stop.env_steps=10000", "eval.every=1000"])
    rows = [make_row(100), make_row(200, **{"eval/return": 321.5}), make_row(300)]
    lines = lines_of(tmp_path / "out", config, *rows)
    assert [re.search(r"  eval +(\S+)  ", line)[1] for line in lines] == ["-", "321.5", "321.5"]


def test_epsilon_is_on_the_line_and_below_the_bar(terminal, tmp_path):
    config = load("dqn-cartpole", ["stop.env_steps=10000"])
    same_length_lines, ladder = {"explore/epsilon": 0.05}, {"explore/epsilon": 0.1234, "explore/epsilon_min": 0.0007}
    ladder["explore/epsilon_max"] = 0.4
    first, second = lines_of(tmp_path / "out", config, make_row(100, **same_length_lines), make_row(200, **ladder))
    assert "  left 0:00:05  epsilon   0.05  policy " in first
    assert "  left 0:00:05  epsilon 0.123 (0.0007 to 0.4)  policy " in second
    with Progress(config, terminal.stream) as progress:
        progress.tick(make_status(300, **ladder))
        assert terminal.read().splitlines()[2].startswith("epsilon 0.123 (0.0007 to 0.4)   policy ")


def test_time_left_respects_stop_minutes(terminal):
    config = load("ppo-cartpole", ["stop.env_steps=100000000", "stop.minutes=2"])
    with Progress(config, terminal.stream) as progress:
        progress.tick(make_status(100))
        assert re.search(r"left 0:0(2:00|1:5\d)", terminal.read())


@pytest.mark.parametrize(
    ("stop", "done", "left"),
    [
        ("{env_steps: 10000, minutes: 20}", "50%   5,000 of 10,000 steps", "0:00:02"),
        ("{env_steps: 10000000, minutes: 10}", "0%   0 of 10 minutes", r"0:(10:00|09:5\d)"),
        ("{env_steps: null, updates: 2000}", "25%   500 of 2,000 updates", "0:00:08"),
        ("{env_steps: 10000, episodes: 16}", "75%   12 of 16 episodes", "0:00:01"),
    ],
)
def test_share_and_time_left_are_those_of_the_nearest_limit(terminal, tmp_path, stop, done, left):
    config = load("ppo-cartpole", [f"stop={stop}"])
    with Progress(config, terminal.stream) as progress:
        progress.tick(make_status(5000, **{"time/updates_per_s": 200.0}))
        assert re.search(rf" {done}   elapsed 0:00:0\d   left {left}\n", terminal.read())
    (line,) = lines_of(tmp_path / "out", config, make_row(5000, **{"time/updates_per_s": 200.0}))
    assert re.search(rf"steps +5,000 +{done.split()[0]}  .*  left {left}  ", line)


ALGORITHMS = {
    "ngu": ["q", "q_values", "reward/novelty", "lifelong", "embedding", "delta_q_first", "delta_q_last"],
    "sac": ["critic", "actor", "entropy", "temperature", "q_values"],
    "impala": [
        f"{source}{name}"
        for source in ("", "queue/", "uniform/", "prioritized/", "elite/")
        for name in ("policy", "value", "entropy", "rho", "clipped", "off_policy", "lag", "clone_policy")
    ],
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_line_has_at_most_160_characters_for_any_numbers(tmp_path, algorithm):
    config = load("dqn-cartpole", ["stop.env_steps=2000000000", "eval.every=1000", "runtime=processes"])
    row = {
        "env_steps": 1_234_567_890,
        "updates": 308_641_972,
        "episodes": 87_654_321,
        "return": -1_234_567.89,
        "eval/return": -987_654.32,
        **{"explore/epsilon": 0.123456, "explore/epsilon_min": 0.000655, "explore/epsilon_max": 0.4},
        **{f"loss/{name}": -1.23456789e-7 for name in sorted(ALGORITHMS[algorithm])},
        **{f"store/{name}/size": 4_000_000 for name in ("queue", "uniform", "prioritized", "elite")},
        "learner/lag": 123_456.789,
        "time/steps_per_s": 12.3,
        "time/frames_per_s": 49.2,
        "time/bottleneck": LIMIT,
    }
    line, limit = lines_of(tmp_path / "out", config, row)
    assert len(line) <= 160
    for fact in ("1,234,567,890  62%", "return -1,234,567.9", "eval -987,654.3", "episodes 87,654,321", "steps/s"):
        assert fact in line
    assert "left 720d 6h" in line
    assert limit == f"bottleneck: {LIMIT}"
    usual = make_row(5000, **{key: row[key] for key in row if key.startswith(("loss/", "explore/"))})
    if "policy" not in ALGORITHMS[algorithm]:
        del usual["loss/policy"]
    config = load("dqn-cartpole", ["stop.env_steps=50000000", "eval.every=1000"])
    (line,) = lines_of(tmp_path / "out", config, usual | {"eval/return": -321.5})
    assert len(line) <= 160
    assert f"  {ALGORITHMS[algorithm][0]} -1.23e-07" in line  # there is space for the most important loss


LIMIT = "learner busy 98%: more actors will not help"


def test_terminal_shows_lag_queue_and_bottleneck(terminal):
    config = load("ppo-cartpole", ["stop.env_steps=100000", "runtime=processes"])
    with Progress(config, terminal.stream) as progress:
        queue = {"store/queue/size": 3, "learner/lag": 1.25}
        progress.tick(make_status(100, **queue, **{"time/bottleneck": LIMIT}))
        *_, learning, limit = terminal.read().splitlines()
        facts = ["policy -0.0123", "replay 4.0% of 100,000 steps", "queue 3 fragments", "lag 1.25 updates"]
        assert learning.split("   ") == facts
        assert limit == f"bottleneck {LIMIT}"
        progress.tick(make_status(200, **queue))
        assert "bottleneck" not in terminal.read()


def test_long_bottleneck_fits_a_narrow_terminal(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as progress:
        progress.tick(make_status(100, **{"time/bottleneck": LIMIT}))
        lines = terminal.read().splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines).endswith(LIMIT)


@pytest.mark.usefixtures("every_row")
def test_pipe_gets_the_bottleneck_when_it_changes(tmp_path):
    path = tmp_path / "out"
    other = "actors busy 97%, learner waits 40%: more actors would help"
    limits = [None, LIMIT, LIMIT.replace("98", "100"), other, other.replace("97", "96"), None, LIMIT]
    with path.open("w") as stream, Progress(load("ppo-cartpole", ["stop.env_steps=10000"]), stream) as progress:
        for step, limit in enumerate(limits):
            progress.row(make_row(step) if limit is None else make_row(step, **{"time/bottleneck": limit}))
    lines = ["row" if line.startswith("steps") else line for line in path.read_text().splitlines()]
    first_limit, second_limit = f"bottleneck: {LIMIT}", f"bottleneck: {other}"
    assert lines == ["row", "row", first_limit, "row", "row", second_limit, "row", "row", "row", first_limit]


def test_closed_pipe_ends_neither_the_run_nor_its_last_messages():
    script = """
        import sys
        from starling.cli import progress
        from starling.config.load import load
        progress.MOST_OFTEN = 0.0
        row = {"env_steps": 1, "updates": 1, "episodes": 1, "return": 1.0, "time/steps_per_s": 1.0}
        with progress.Progress(load("ppo-cartpole", ["stop.env_steps=100000"])) as shown:
            for step in range(2000):
                shown.row(row | {"env_steps": step})
        print("finished")
        print("done", file=sys.stderr)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline().startswith("steps")
        run.stdout.close()
        assert run.stderr.read() == "done\n"
    assert run.returncode == 0


TRAIN = [
    sys.executable,
    "-m",
    "starling",
    "train",
    "ppo-cartpole",
    "algo.rollout=16",
    "net.torso.hidden=[8]",
    "run=mine",
]


def has_finished(runs):
    return "finished: stop.env_steps=" in (runs / "mine" / "log.txt").read_text()


@pytest.mark.parametrize("closed", ["<&- >&-", "2>&-"])
def test_run_with_closed_streams_trains_silently(tmp_path, closed):
    command = f"{shlex.join(TRAIN)} stop.env_steps=256 --runs {shlex.quote(str(tmp_path))} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("finished: " in done.stdout) == (closed == "2>&-")
    assert has_finished(tmp_path)


def test_invalid_command_without_stderr_still_exits_with_2(tmp_path):
    done = subprocess.run(f"{shlex.join([*TRAIN[:4], 'no-such-preset'])} 2>&-", shell=True, check=False)
    assert done.returncode == 2


def test_run_whose_terminal_is_closed_continues_to_its_end(terminal, tmp_path):
    command = [*TRAIN, "stop.env_steps=4000", "--runs", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal.stream, stderr=terminal.stream) as run:
        terminal.stream.close()
        while "of 4,000 steps" not in terminal.read():
            assert run.poll() is None
        terminal.hang_up()
    assert run.returncode == 0
    assert has_finished(tmp_path)


@pytest.mark.parametrize("kind", ["xterm-256color", "dumb"])
def test_closing_message_is_the_last_line_and_needs_no_reader(terminal, monkeypatch, kind):
    monkeypatch.setenv("TERM", kind)
    config = load("ppo-cartpole", ["stop.env_steps=100000"])
    progress = Progress(config, terminal.stream)
    progress.tick(make_status(100_000))
    progress.close("finished: it is over")
    assert terminal.read().splitlines()[-1] == "finished: it is over"
    progress = Progress(config, terminal.stream)
    terminal.hang_up()
    progress.close("finished: it is over")


def test_failing_display_is_reported_once_and_the_run_continues(terminal, capsys):
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as progress:
        for step in (100, 200):
            progress.tick(make_status(step, **{"loss/value": "not a number"}))
    assert capsys.readouterr().err.count("the display has stopped, training goes on") == 1


def lines_until(file, condition, seconds=60.0):
    """The lines of a file once `condition(lines)` holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition(found := file.read_text().splitlines()):
            return found
        time.sleep(0.02)
    raise AssertionError(file.read_text())


def test_file_has_a_line_whenever_there_was_none_for_a_while(tmp_path, monkeypatch):
    """Also while the main thread is busy, as in a long update, and before training has begun."""
    monkeypatch.setattr("starling.cli.progress.SILENCE", 0.05)
    file = tmp_path / "train.txt"
    with file.open("w") as stream, Progress(load("dqn-cartpole", ["stop.env_steps=10000"]), stream) as progress:
        lines_until(file, lambda lines: lines and re.fullmatch(r"starting  elapsed 0:00:0\d", lines[-1]))
        progress.tick(make_status(5000))
        before = len(file.read_text().splitlines())
        found = lines_until(file, lambda lines: len(lines) > before + 1)
        assert re.match(r"steps  5,000  50%  return +200.*  elapsed 0:00:0\d$", found[-1])
    assert len(file.read_text().splitlines()) >= before + 2
    assert [thread.name for thread in threading.enumerate() if thread.name == "progress"] == []


def test_file_has_no_extra_lines_while_there_are_others(tmp_path):
    file = tmp_path / "train.txt"
    with file.open("w") as stream, Progress(load("dqn-cartpole", ["stop.env_steps=10000"]), stream) as progress:
        for steps in (1000, 2000):
            progress.tick(make_status(steps))
            progress.row(make_row(steps))
    assert [line.split()[1] for line in file.read_text().splitlines()] == ["1,000", "2,000"]


def test_silence_is_shorter_than_half_a_minute():
    assert SILENCE < 30


def test_terminal_needs_no_thread(terminal):
    with Progress(load("dqn-cartpole"), terminal.stream):
        assert [thread.name for thread in threading.enumerate() if thread.name == "progress"] == []
