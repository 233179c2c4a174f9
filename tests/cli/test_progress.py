"""What a person sees of a run: on a terminal, in a pipe, and when nobody looks any more."""

import os
import re
import select
import subprocess
import sys
import textwrap

import pytest

from starling.cli.progress import Progress
from starling.config.load import load
from starling.runs.status import Status


def a_row(env_steps, score=200.0, **more):
    return {
        "env_steps": env_steps,
        "updates": env_steps // 10,
        "episodes": 12,
        "return": score,
        "loss/policy": -0.01234,
        "store/replay/size": 4000,
        "time/steps_per_s": 2000.0,
        **more,
    }


def a_status(env_steps, score=200.0, frames=1, **more):
    return Status(env_steps, env_steps // 10, 12, score, 2000.0, 2000.0 * frames, a_row(env_steps, score, **more))


class Terminal:
    """A real pseudo-terminal."""

    def __init__(self):
        self._master, slave = os.openpty()
        self.stream = open(slave, "w", encoding="utf-8")  # noqa: SIM115

    def read(self):
        """What was written since, without the control sequences; the kernel hands it over a little later."""
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


def test_a_terminal_gets_a_bar_with_the_numbers_beneath(terminal):
    with Progress(load("dqn-cartpole", ["stop.return=475", "stop.env_steps=10000"]), terminal.stream) as shown:
        shown.message("run: runs/[red]mine")
        assert terminal.read() == "run: runs/[red]mine\n"
        shown.tick(a_status(5000, frames=4))
        bar, counts, learning = terminal.read().splitlines()
    assert re.fullmatch(r"CartPole-v1 dqn   ━+─+  50%   5,000 of 10,000 steps   elapsed 0:00:0\d   left 0:00:02", bar)
    assert len(bar) == 120
    assert counts.split("   ") == [
        "return 200.0 (goal 475)",
        "episodes 12",
        "updates 500",
        "steps/s 2,000",
        "frames/s 8,000",
    ]
    assert learning.split("   ") == ["policy -0.0123", "replay 4,000 of 100,000"]


def test_losses_and_evaluations_stay_until_the_next_ones(terminal):
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as shown:
        shown.row(a_row(100, **{"eval/return": 33.0}))
        without = a_row(200)
        del without["loss/policy"]
        shown.row(without)
        assert terminal.read() == ""
        shown.tick(Status(300, 30, 3, 1.0, 9.0, 9.0, without))
        assert "eval 33.0   policy -0.0123" in terminal.read()


def test_the_last_row_stays_on_the_screen(terminal):
    shown = Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream)
    shown.tick(a_status(99_000))
    shown.row(a_row(100_000))
    terminal.read()
    shown.close()
    assert "100%   100,000 of 100,000 steps" in terminal.read()
    shown.close()
    shown.tick(a_status(300))
    shown.message("too late")
    assert terminal.read() == ""


def test_messages_go_above_the_bar_and_are_not_broken(terminal):
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as shown:
        shown.tick(a_status(100))
        terminal.read()
        shown.message("resuming from " + "x" * 150)
        text = terminal.read()
    assert text.index("resuming") < text.index("CartPole-v1")
    assert "x" * 150 in text


@pytest.mark.parametrize("width", [20, 60, 90])
def test_no_fact_is_broken_on_a_narrow_terminal(terminal, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as shown:
        shown.tick(a_status(100))
        lines = terminal.read().splitlines()
    assert max(map(len, lines)) <= width
    for fact in ("left 0:00:50", "episodes 12", "steps/s 2,000", "policy -0.0123"):
        assert any(fact in line for line in lines)


def test_no_color_is_respected(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as shown:
        shown.tick(a_status(50_000))
    raw = terminal.read_raw()
    assert "━" in raw
    assert "\x1b[36m" not in raw


def test_a_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as shown:
        shown.tick(a_status(100))
        assert terminal.read() == ""
        shown.row(a_row(100))
        assert terminal.read().count("\n") == 1


def test_a_terminal_that_goes_away_does_not_end_the_run(terminal):
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as shown:
        shown.tick(a_status(100))
        terminal.hang_up()
        for step in range(200, 500, 100):
            shown.tick(a_status(step))
            shown.row(a_row(step))
            shown.message("still there?")
    terminal.stream.write("nobody hears this, nobody minds")
    terminal.stream.flush()


def test_a_pipe_gets_a_line_a_row_in_the_same_words(tmp_path):
    config = load("dqn-cartpole", ["stop.env_steps=10000"])
    path = tmp_path / "out"
    with path.open("w") as stream, Progress(config, stream) as shown:
        shown.message("run: here")
        shown.row(a_row(100, score=None))
        shown.tick(a_status(4900, frames=4))
        shown.row(a_row(5000, score=3.25, **{"loss/arm/7/return": 1.0}))  # of one among many: left to the files
    message, first, second = path.read_text().splitlines()
    assert message == "run: here"
    assert first.startswith("steps    100   1%  return       -  episodes      12  updates       10  steps/s   2,000  ")
    assert second.startswith("steps  5,000  50%  return    3.25  episodes ")
    assert second.endswith("  frames/s   8,000  policy -0.0123  replay 4,000 of 100,000")


LIMIT = "learner busy 98%: more actors will not help"


def test_a_terminal_shows_lag_queue_and_bottleneck(terminal):
    config = load("ppo-cartpole", ["stop.env_steps=100000", "runtime=processes"])
    with Progress(config, terminal.stream) as shown:
        queue = {"store/replay/size": 0, "learner/lag": 1.25}
        shown.tick(a_status(100, **queue, **{"time/bottleneck": LIMIT}))
        *_, learning, limit = terminal.read().splitlines()
        assert learning.split("   ") == ["policy -0.0123", "replay 0", "lag 1.25"]
        assert limit == f"bottleneck {LIMIT}"
        shown.tick(a_status(200, **queue))
        assert "bottleneck" not in terminal.read()


def test_a_long_bottleneck_fits_a_narrow_terminal(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as shown:
        shown.tick(a_status(100, **{"time/bottleneck": LIMIT}))
        lines = terminal.read().splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines).endswith(LIMIT)


def test_a_pipe_is_told_of_a_bottleneck_when_it_changes(tmp_path):
    path = tmp_path / "out"
    other = "actors busy 97%, learner waits 40%: more actors would help"
    limits = [None, LIMIT, LIMIT.replace("98", "100"), other, other.replace("97", "96"), None, LIMIT]
    with path.open("w") as stream, Progress(load("ppo-cartpole", ["stop.env_steps=10000"]), stream) as shown:
        for step, limit in enumerate(limits):
            shown.row(a_row(step) if limit is None else a_row(step, **{"time/bottleneck": limit}))
    told = [line.partition("  replay 4,000")[2].strip() for line in path.read_text().splitlines()]
    assert told == ["", LIMIT, "", other, "", "", LIMIT]


def test_a_reader_that_has_had_enough_ends_neither_the_run_nor_its_last_words():
    script = """
        import sys
        from starling.cli.progress import Progress
        from starling.config.load import load
        row = {"env_steps": 1, "updates": 1, "episodes": 1, "return": 1.0, "time/steps_per_s": 1.0}
        with Progress(load("ppo-cartpole", ["stop.env_steps=100000"])) as shown:
            for _ in range(2000):
                shown.row(row)
        print("finished")
        print("done", file=sys.stderr)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline().startswith("steps")
        run.stdout.close()
        assert run.stderr.read() == "done\n"
    assert run.returncode == 0


def test_a_display_that_fails_says_so_once_and_the_run_goes_on(terminal, capsys):
    with Progress(load("ppo-cartpole", ["stop.env_steps=100000"]), terminal.stream) as shown:
        for step in (100, 200):
            shown.tick(a_status(step, **{"loss/value": "not a number"}))
    assert capsys.readouterr().err.count("the display has stopped, training goes on") == 1
