"""Sessions with a fake runtime and a fake clock: stop conditions, the last evaluation, and the units of a row."""

import os
import signal
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from starling.config.load import load
from starling.experiment.run_folder import checkpoint, folder
from starling.experiment.run_folder.metrics import read_rows
from starling.experiment.session import Session
from starling.launch.plan import RunPlan
from starling.process_exit import Interrupts
from starling.types import Episode

SECONDS = 0.5
"""That one step of the fake runtime takes on the fake clock."""
STEPS, UPDATES = 8, 2
"""Env steps and updates of one step."""
CONSTANT = ["stop.env_steps=null", "algo.optimizer.schedule=null", "algo.clip=0.2"]
"""A run without a length in env steps or updates."""


class FakeRuntime:
    """Counts calls; `episode` is the return of an episode at every step, `evaluation` the steps of an evaluation."""

    def __init__(self, env_steps=0, updates=0, episode=None, evaluation=3):
        self.env_steps, self.updates, self.now = env_steps, updates, 1000.0
        self.episode, self.evaluation = episode, evaluation
        self.calls = Counter()
        self.learner = SimpleNamespace(skipping=False)
        self.during = {}  # what happens in the n-th step, or in the n-th step of an evaluation
        self._evaluations = []

    def clock(self):
        return self.now

    def run(self):
        while True:
            self.env_steps += STEPS
            self.updates += UPDATES
            self._pass("run")
            yield

    def _pass(self, what):
        self.now += SECONDS
        self.calls[what] += 1
        self.during.get((what, self.calls[what]), lambda: None)()

    def episodes(self):
        return [] if self.episode is None else [Episode(0, self.episode, 20)]

    def notices(self):
        return []

    def drain_metrics(self):
        return {"loss/fake": 1.5}

    def save(self, with_tables):
        self.calls["save"] += 1
        return {"learner": {"model": {}}, "store": {"with_tables": with_tables}}

    def evaluate(self, wait):
        self.calls["waited for" if wait else "beside"] += 1
        for _ in range(self.evaluation):
            self._pass("evaluate")
            yield
        self._evaluations.append({"eval/return": 77.0, "eval/env_steps": self.env_steps})

    def evaluations(self):
        done, self._evaluations = self._evaluations, []
        return done

    def halt(self):
        self.calls["halt"] += 1

    def close(self):
        self.calls["close"] += 1


class Recorder:
    def __init__(self):
        self.statuses, self.rows, self.lines = [], [], []
        self.tick, self.row, self.message = self.statuses.append, self.rows.append, self.lines.append


@pytest.fixture
def drive(tmp_path):
    """`drive(runtime, *settings)`: the result of a session, its folder, and its recorded display."""

    def run(runtime, *settings, frames_per_step=1, state=None, interrupts=None):
        run_plan = RunPlan.from_config(load("ppo-cartpole", ["stop.return=null", *settings]))
        run_plan = replace(run_plan, env=replace(run_plan.env, frames_per_step=frames_per_step))
        place, display = folder.create(tmp_path, run_plan.config), Recorder()
        result = Session(run_plan, place, runtime, display, state, runtime.clock, interrupts).run()
        return result, place, display

    return run


def test_stops_at_the_configured_env_steps(drive):
    result, place, _ = drive(FakeRuntime(), "stop.env_steps=801")
    assert (result.env_steps, result.updates, result.exit_code) == (808, 202, 0)
    assert result.reason == "stop.env_steps=801 reached"
    assert [row["env_steps"] for row in read_rows(place.metrics_file)][-1] == 808
    assert checkpoint.newest_sound(place.checkpoints).name == "step-000000000808"


def test_stops_at_the_configured_updates(drive):
    result, _, _ = drive(FakeRuntime(), "stop.updates=31")
    assert result.updates == 32
    assert result.reason == "stop.updates=31 reached"


def test_stops_after_the_configured_minutes(drive):
    result, _, _ = drive(FakeRuntime(), "stop.minutes=2")
    assert result.env_steps == 2 * 60 / SECONDS * STEPS
    assert result.reason == "stop.minutes=2 reached"


def test_stops_after_the_configured_episodes_or_frames(drive):
    result, _, _ = drive(FakeRuntime(episode=1.0), "stop.episodes=30", *CONSTANT)
    assert result.env_steps == 30 * STEPS
    assert (result.reason, result.resume_overrides) == ("stop.episodes=30 reached", "stop.episodes=60")
    result, _, _ = drive(FakeRuntime(), "stop.frames=3200", frames_per_step=4)
    assert (result.env_steps, result.reason) == (800, "stop.frames=3,200 reached")


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        ("80", [80, 160, 240, 320]),
        ("80 env steps", [80, 160, 240, 320]),
        ("400 frames", [104, 200, 304, 320]),
        ("25 updates", [104, 200, 304, 320]),
        ("15 episodes", [120, 240, 320]),
        ("0.125 min", [120, 240, 320]),
    ],
)
def test_rows_and_checkpoints_are_written_at_multiples_in_every_unit(drive, every, steps):
    settings = [f"log.every={every}", f"checkpoint.every={every}", "checkpoint.keep=9", "stop.env_steps=320"]
    _, place, _ = drive(FakeRuntime(episode=1.0), *settings, frames_per_step=4)
    assert [row["env_steps"] for row in read_rows(place.metrics_file)] == steps
    names = sorted(folder.name for folder in place.checkpoints.glob("step-*"))
    assert names == [f"step-{step:012}" for step in steps]


def test_resumed_run_has_its_rows_at_the_same_updates(drive):
    runtime = FakeRuntime(env_steps=208, updates=52)
    state = {"scores": {"episodes": 0, "totals": [], "lengths": []}, "evaluated": None, "rows": 0}
    _, place, _ = drive(runtime, "log.every=25 updates", "stop.env_steps=400", state=state)
    assert [row["updates"] for row in read_rows(place.metrics_file)] == [76, 100]


def test_evaluates_at_multiples_of_episodes(drive):
    runtime = FakeRuntime(episode=1.0)
    drive(runtime, "eval.every=12 episodes", "stop.env_steps=320")
    assert (runtime.calls["beside"], runtime.calls["waited for"]) == (4, 1)  # 12, 24, 36, 48; and at the end


@pytest.mark.parametrize(("returns", "stops"), [(50.0, True), (49.9, False)])
def test_stops_when_the_mean_of_100_episodes_is_reached(drive, returns, stops):
    result, _, _ = drive(FakeRuntime(episode=returns), "stop.return=50", "stop.env_steps=2000")
    assert result.env_steps == (100 * STEPS if stops else 2000)
    assert result.score == pytest.approx(returns)


def test_score_is_that_of_the_last_100_episodes(drive):
    runtime = FakeRuntime(episode=0.0)
    runtime.during["run", 151] = lambda: setattr(runtime, "episode", 10.0)
    result, place, _ = drive(runtime, f"stop.env_steps={200 * STEPS}")
    assert result.score == pytest.approx(5.0)  # 50 of them return 10
    assert read_rows(place.metrics_file)[-1]["episodes"] == 200


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_stops_without_an_evaluation(drive, number, code):
    runtime = FakeRuntime()
    runtime.during["run", 7] = lambda: os.kill(os.getpid(), number)
    result, place, _ = drive(runtime, "eval.every=100000")
    assert (result.env_steps, result.exit_code) == (7 * STEPS, code)
    assert result.reason == f"{number.name} received"
    assert runtime.calls["evaluate"] == 0
    assert checkpoint.newest_sound(place.checkpoints).name == f"step-{7 * STEPS:012d}"


def test_last_evaluation_is_awaited_and_written(drive):
    runtime = FakeRuntime()
    _, place, _ = drive(runtime, "stop.env_steps=1000", "eval.every=400")
    assert (runtime.calls["beside"], runtime.calls["waited for"]) == (2, 1)
    rows = read_rows(place.metrics_file)
    assert [row["eval/env_steps"] for row in rows if "eval/return" in row] == [400, 800, 1000]
    assert "eval/return" in rows[-1]
    assert checkpoint.best(place.checkpoints)[1] == 77.0


def test_signal_drops_the_running_evaluation(drive):
    runtime = FakeRuntime(evaluation=1000)
    runtime.during["evaluate", 5] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    result, place, display = drive(runtime, "eval.every=400")
    assert (runtime.calls["evaluate"], result.env_steps, result.exit_code) == (5, 400, 143)
    assert not any("eval/return" in row for row in read_rows(place.metrics_file))
    assert any(status.evaluating for status in display.statuses)
    assert not display.statuses[0].evaluating


def test_evaluation_during_which_the_time_runs_out_is_the_last(drive):
    runtime = FakeRuntime(evaluation=60)
    result, place, _ = drive(runtime, "stop.minutes=0.5", "eval.every=400")  # from second 25 to 55
    assert (result.reason, result.env_steps) == ("stop.minutes=0.5 reached", 400)
    assert runtime.calls["evaluate"] == 60
    assert [row["eval/env_steps"] for row in read_rows(place.metrics_file) if "eval/return" in row] == [400]


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        (["stop.env_steps=100", "eval.every=1000"], 1),  # it is known in advance to be the last
        (["stop.minutes=0.5", "eval.every=400"], 11),  # time runs out in its tenth step
    ],
)
def test_state_is_saved_before_the_last_evaluation(drive, settings, step):
    runtime = FakeRuntime(evaluation=60)
    saved = []
    runtime.during["evaluate", step] = lambda: saved.append(runtime.calls["save"])
    drive(runtime, "checkpoint.every=1000000", *settings)
    assert saved == [1]


def test_runtime_is_halted_before_the_last_state_is_saved(drive):
    runtime = FakeRuntime()
    save, halted = runtime.save, []
    runtime.save = lambda with_tables: halted.append(runtime.calls["halt"]) or save(with_tables)
    drive(runtime, "stop.env_steps=80", "checkpoint.every=40")
    assert halted == [0, 1]


def test_signal_before_the_first_step_leaves_a_resumable_run(drive, monkeypatch):
    interrupts = Interrupts()
    with interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        result, place, _ = drive(FakeRuntime(), interrupts=interrupts)
    assert (result.exit_code, result.env_steps) == (143, 0)
    assert checkpoint.newest_sound(place.checkpoints) is not None


def test_while_updates_are_skipped_only_the_last_checkpoint_is_written(drive):
    runtime = FakeRuntime()
    runtime.learner.skipping = True
    runtime.during["run", 60] = lambda: setattr(runtime.learner, "skipping", False)
    runtime.during["run", 80] = lambda: setattr(runtime.learner, "skipping", True)
    drive(runtime, "stop.env_steps=800", "checkpoint.every=80")
    assert runtime.calls["save"] == 3  # at steps 60 and 70, and the last one


def test_by_default_there_are_100_rows_and_10_checkpoints(drive):
    runtime = FakeRuntime()
    _, place, _ = drive(runtime, "stop.env_steps=8000", "log.every=null", "checkpoint.every=null")
    assert [row["env_steps"] for row in read_rows(place.metrics_file)] == list(range(80, 8001, 80))
    assert runtime.calls["save"] == 10


@pytest.mark.parametrize("settings", [["log.every=400", "checkpoint.every=1600"]])
def test_rows_and_checkpoints_are_as_frequent_as_configured(drive, settings):
    runtime = FakeRuntime()
    _, place, _ = drive(runtime, "stop.env_steps=8000", *settings)
    assert [row["env_steps"] for row in read_rows(place.metrics_file)] == list(range(400, 8001, 400))
    assert runtime.calls["save"] == 5


def test_every_number_in_a_row_has_its_unit(drive):
    runtime = FakeRuntime(episode=3.0)
    _, place, _ = drive(runtime, "stop.env_steps=800", "log.every=800", frames_per_step=4)
    (row,) = read_rows(place.metrics_file)
    seconds = 100 * SECONDS
    assert {key: value for key, value in row.items() if not key.startswith("time/checkpoint")} == {
        "env_steps": 800,
        "updates": 200,
        "episodes": 100,
        "return": 3.0,
        "episode_length": 20,
        "episode_longest": 20,
        "loss/fake": 1.5,
        "time/seconds": seconds,
        "time/steps_per_s": 800 / seconds,
        "time/frames_per_s": 4 * 800 / seconds,
        "time/updates_per_s": 200 / seconds,
    }


def test_speed_counts_from_the_resumed_step(drive):
    state = {"scores": {"episodes": 5, "totals": [1.0], "lengths": [9]}, "evaluated": None, "rows": 0}
    _, place, _ = drive(FakeRuntime(100_000, 25_000), "stop.env_steps=100800", "log.every=100800", state=state)
    (row,) = read_rows(place.metrics_file)
    assert (row["time/steps_per_s"], row["time/updates_per_s"]) == (STEPS / SECONDS, UPDATES / SECONDS)
    assert (row["episodes"], row["return"]) == (5, 1.0)


def test_display_gets_steps_and_frames_per_second(drive):
    _, _, display = drive(FakeRuntime(), "stop.env_steps=4000", frames_per_step=4)
    last = display.statuses[-1]
    assert last.steps_per_s == pytest.approx(STEPS / SECONDS)
    assert last.frames_per_s == pytest.approx(4 * STEPS / SECONDS)


def test_settings_that_would_end_a_resumed_run_at_once_are_rejected(drive):
    result, _, _ = drive(FakeRuntime(), "stop.env_steps=800000", "stop.updates=100")
    assert result.resume_overrides == "stop.updates=200"
    result, _, _ = drive(FakeRuntime(), "stop.env_steps=50000", "stop.updates=150")  # at most 197
    assert result.resume_overrides == "stop.updates=300 stop.env_steps=100000"
    result, _, _ = drive(FakeRuntime(), "stop.env_steps=800")
    assert result.resume_overrides == "stop.env_steps=1600"


@pytest.mark.parametrize("replay", ["true", "false"])
def test_tables_are_saved_unless_disabled(drive, replay):
    _, place, _ = drive(FakeRuntime(), "stop.env_steps=80", f"checkpoint.replay={replay}")
    _, state, _ = checkpoint.find(place.checkpoints)
    assert state["store"]["with_tables"] is (replay == "true")


def test_everything_is_closed_even_if_the_runtime_fails(drive):
    runtime = FakeRuntime()
    runtime.during["run", 3] = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        drive(runtime)
    assert runtime.calls["close"] == 1
