"""Windows of whole versions, means of costs, and the search for the fastest settings."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from starling.config.load import load, to_dict
from starling.errors import UserError
from starling.experiment.display import Status
from starling.launch.plan import RunPlan
from starling.tools.benchmark import throughput, tuning
from starling.tools.benchmark.costs import Cost, Costs
from starling.tools.benchmark.throughput import EnoughError, Meter
from starling.tools.benchmark.tuning import Choice, Trial, fastest, search

TOY = ["env.id=toy/identity", "env.num=4", "algo.unroll=5", "algo.batch=4", "net.torso.hidden=[8]"]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def status(env_steps, updates):
    return Status(env_steps, updates, 0, None, 0.0, 0.0, {})


def go(meter, clock, now, env_steps, updates):
    clock.now = 100.0 + now
    meter.tick(status(env_steps, updates))


def test_a_window_begins_after_the_warm_up_and_holds_whole_versions():
    clock = Clock()
    meter = Meter(8.0, lambda line: None, clock)  # its warm-up is 2 s after the first version
    go(meter, clock, 5.0, 1_000, 0)
    go(meter, clock, 6.0, 5_000, 5)  # the first version
    go(meter, clock, 7.0, 6_000, 6)
    meter.row({"learner/lag": 99.0, "time/learner/busy": 0.0})  # before the window
    go(meter, clock, 9.0, 6_500, 6)  # long enough after it, but no version has just come
    go(meter, clock, 10.0, 7_000, 7)  # here it begins
    meter.row({"time/seconds": 2.0, "time/learner/busy": 0.2, "time/actors/busy": 0.5, "time/learner/wait_in": 0.8})
    go(meter, clock, 14.0, 8_000, 8)
    meter.row({"time/seconds": 3.0, "learner/lag": 1.0, "time/learner/busy": 0.4})
    meter.row({"time/seconds": 6.0, "learner/lag": 2.0, "time/learner/busy": 0.6})  # three times as long
    go(meter, clock, 19.0, 9_500, 8)  # over, but in the midst of a version
    with pytest.raises(EnoughError):
        go(meter, clock, 20.0, 10_000, 9)
    reading = meter.reading()
    assert reading.seconds == 10.0
    assert reading.steps_per_s == 300.0
    assert reading.lag == 1.5
    assert reading.busy == pytest.approx({"learner": (0.2 + 0.4 + 3 * 0.6) / 5, "actors": 0.5})


def test_a_few_versions_are_left_out_however_slow_they_are():
    clock = Clock()
    meter = Meter(1.0, lambda line: None, clock)
    for version in (1, 2, 3):
        go(meter, clock, 10.0 * version, 100 * version, version)
    with pytest.raises(EnoughError):
        go(meter, clock, 40.0, 700, 4)
    assert meter.reading().steps_per_s == 40.0
    assert meter.reading().lag is None


def test_a_run_that_never_learns_is_given_up():
    clock = Clock()
    meter = Meter(1.0, lambda line: None, clock)
    go(meter, clock, 119.0, 100, 0)
    with pytest.raises(UserError, match="no update within 120 s"):
        go(meter, clock, 121.0, 200, 0)


def test_only_what_decides_the_end_is_changed():
    config = load(
        "dqn-pong", ["stop.env_steps=1000", "stop.minutes=1", "stop.return=3", "eval.every=5", "log.every=null"]
    )
    changed = throughput.without_end(config)
    assert changed.log_every == 10
    assert changed.checkpoint_every == config.checkpoint_every
    assert changed.checkpoint.keep == config.checkpoint.keep == 1
    assert changed.eval.every is None
    assert changed.stop.minutes is changed.stop.return_ is None
    before, after = to_dict(config), to_dict(changed)
    assert {key for key in before if before[key] != after[key]} == {"stop", "eval", "log"}


def test_costs_before_and_after_are_one_mean_with_all_extremes():
    first = Costs(Cost(1.0, 0.5, 2.0), Cost(2.0, 1.5, 3.0), Cost(1.0, 1.0, 1.0), cores=2, peak=5)
    second = Costs(Cost(3.0, 0.7, 4.0), Cost(2.0, 1.0, 2.5), Cost(3.0, 2.0, 4.0), cores=2, peak=6)
    both = throughput.mean([first, second])
    assert both.env_step == Cost(2.0, 0.5, 4.0)
    assert both.inference == Cost(2.0, 1.0, 3.0)
    assert both.training == Cost(2.0, 1.0, 4.0)
    assert both.limit == 2 / 6
    assert throughput.mean([first]) == first


def test_a_real_run_is_measured_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    config = load("impala-cartpole", [*TOY, "log.every=40", "stop.env_steps=40"])
    began = time.monotonic()
    reading = throughput.watch(config, 1.0, pytest.fail)
    assert 1.0 <= reading.seconds <= time.monotonic() - began
    assert reading.end.env_steps > 40  # the preset's own end did not end it
    versions = reading.end.updates - reading.begin.updates
    steps = reading.end.env_steps - reading.begin.env_steps
    assert 0.8 * 20 * versions < steps <= 20 * versions + 40  # 4 unrolls of 5 steps a version, some of them resets
    assert reading.lag is not None
    assert set(reading.busy) == {"learner", "actors"}
    assert 0.5 < sum(reading.busy.values()) <= 1.1  # each role's clock is read at its own moment of a second
    assert list(tmp_path.glob("starling-*")) == []


def test_a_run_that_is_interrupted_is_not_measured():
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        throughput.watch(load("impala-cartpole", TOY), 60.0, lambda line: None)


START = Choice("inline", "local", actors=1, threads=1, rows=8)
ELSEWHERE = replace(START, runtime="processes")


def found(speed, *, cores=4, rows=False):
    """All trials where `speed` says how fast a choice is."""
    return list(search([START, ELSEWHERE], tuning._plan(cores, rows=rows), lambda choice: Trial(choice, speed(choice))))


def test_the_search_finds_what_helps_though_the_first_step_towards_it_does_not():
    def speed(choice):
        central = 1.5 if choice.inference == "central" else 1.0
        return 100.0 if choice.runtime == "inline" else 30.0 * central * choice.actors / choice.threads

    trials = found(speed)
    assert fastest(trials).choice == Choice("processes", "central", actors=8, threads=1, rows=8)
    assert trials[0].choice == START
    assert len({trial.choice for trial in trials}) == len(trials) <= tuning.MOST_TRIALS
    assert {trial.choice.rows for trial in trials} == {8}
    assert any(trial.choice.threads == 4 for trial in trials if trial.choice.runtime == "inline")


def test_actors_are_tried_again_after_what_came_between():
    def speed(choice):
        best = 4 if choice.inference == "central" else 1
        return 100.0 * (choice.inference == "central") - 10 * abs(choice.actors - best) + 200

    assert fastest(found(speed)).choice.actors == 4


def test_rows_are_varied_only_when_asked_for_and_trials_are_few():
    trials = found(lambda choice: float(choice.rows), cores=2, rows=True)
    assert fastest(trials).choice.rows == 32
    assert len(found(lambda choice: float(choice.rows), cores=64, rows=True)) <= tuning.MOST_TRIALS


def test_noise_is_no_reason_to_change():
    trials = [Trial(START, 100.0), Trial(ELSEWHERE, 102.0)]
    assert fastest(trials).choice == START
    assert fastest([*trials, Trial(replace(ELSEWHERE, actors=2), 104.0)]).choice.actors == 2
    assert fastest([Trial(START, 0.0, "refused"), Trial(ELSEWHERE, 1.0)]).choice == ELSEWHERE


def test_a_choice_is_what_its_overrides_say():
    config = load("impala-cartpole", TOY)
    choice = Choice("processes", "central", actors=2, threads=1, rows=4)
    assert choice.apply(config) == load("impala-cartpole", [*TOY, *choice.overrides()])
    assert Choice.of(RunPlan.from_config(choice.apply(config))) == choice


def test_what_cannot_run_is_passed_over_with_its_reason():
    uneven = Choice("processes", "local", actors=2, threads=1, rows=3)
    trial = tuning.attempt(load("ppo-cartpole"), uneven, 60.0, pytest.fail)
    assert trial.steps_per_s == 0.0
    assert "equally many envs" in trial.refused
