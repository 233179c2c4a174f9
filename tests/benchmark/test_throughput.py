"""Throughput: measuring over whole updates, mean costs, and the search for the fastest settings."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from starling.config.load import load, to_dict
from starling.config.quantities import Quantity
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


def tick_at(meter, clock, now, env_steps, updates):
    clock.now = 100.0 + now
    meter.tick(status(env_steps, updates))


def test_measurement_starts_after_the_warm_up_and_spans_whole_updates():
    clock = Clock()
    meter = Meter(8.0, lambda line: None, clock)  # its warm-up ends 2 s after the first update
    tick_at(meter, clock, 5.0, 1_000, 0)
    tick_at(meter, clock, 6.0, 5_000, 5)  # the first update
    tick_at(meter, clock, 7.0, 6_000, 6)
    meter.row({"learner/lag": 99.0, "time/learner/busy": 0.0})  # before the measurement
    tick_at(meter, clock, 9.0, 6_500, 6)  # the warm-up is over, but no update has just been done
    tick_at(meter, clock, 10.0, 7_000, 7)  # the measurement begins
    meter.row({"time/seconds": 2.0, "time/learner/busy": 0.2, "time/actors/busy": 0.5, "time/learner/wait_in": 0.8})
    tick_at(meter, clock, 14.0, 8_000, 8)
    meter.row({"time/seconds": 3.0, "learner/lag": 1.0, "time/learner/busy": 0.4})
    # Weighted by its three times longer duration.
    meter.row({"time/seconds": 6.0, "learner/lag": 2.0, "time/learner/busy": 0.6})
    tick_at(meter, clock, 19.0, 9_500, 8)  # long enough, but between two updates
    with pytest.raises(EnoughError):
        tick_at(meter, clock, 20.0, 10_000, 9)
    reading = meter.reading()
    assert reading.seconds == 10.0
    assert reading.steps_per_s == 300.0
    assert reading.lag == 1.5
    assert reading.busy == pytest.approx({"learner": (0.2 + 0.4 + 3 * 0.6) / 5, "actors": 0.5})


def test_first_updates_are_excluded_even_if_they_are_slow():
    clock = Clock()
    meter = Meter(1.0, lambda line: None, clock)
    for version in (1, 2, 3):
        tick_at(meter, clock, 10.0 * version, 100 * version, version)
    with pytest.raises(EnoughError):
        tick_at(meter, clock, 40.0, 700, 4)
    assert meter.reading().steps_per_s == 40.0
    assert meter.reading().lag is None


def test_run_without_updates_is_given_up():
    clock = Clock()
    meter = Meter(1.0, lambda line: None, clock)
    tick_at(meter, clock, 119.0, 100, 0)
    with pytest.raises(UserError, match="no update within 120 s"):
        tick_at(meter, clock, 121.0, 200, 0)


def test_without_end_changes_only_settings_that_end_or_interrupt_a_run():
    config = load(
        "dqn-pong", ["stop.env_steps=1000", "stop.minutes=1", "stop.return=3", "eval.every=5", "log.every=null"]
    )
    changed = throughput.without_end(config)
    assert changed.log_every == Quantity(10, "env steps")
    assert changed.checkpoint_every == config.checkpoint_every
    assert changed.checkpoint.keep == config.checkpoint.keep == 1
    assert changed.eval.every is None
    assert changed.stop.minutes is changed.stop.return_ is None
    before, after = to_dict(config), to_dict(changed)
    assert {key for key in before if before[key] != after[key]} == {"stop", "eval", "log"}


def test_mean_of_costs_keeps_all_extremes():
    first = Costs(Cost(1.0, 0.5, 2.0), Cost(2.0, 1.5, 3.0), Cost(1.0, 1.0, 1.0), cores=2, peak=5)
    second = Costs(Cost(3.0, 0.7, 4.0), Cost(2.0, 1.0, 2.5), Cost(3.0, 2.0, 4.0), cores=2, peak=6)
    both = throughput.mean([first, second])
    assert both.env_step == Cost(2.0, 0.5, 4.0)
    assert both.inference == Cost(2.0, 1.0, 3.0)
    assert both.training == Cost(2.0, 1.0, 4.0)
    assert both.limit == 2 / 6
    assert throughput.mean([first]) == first


def test_real_run_is_measured_and_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    config = load("impala-cartpole", [*TOY, "log.every=40", "stop.env_steps=40"])
    began = time.monotonic()
    reading = throughput.watch(config, 1.0, pytest.fail)
    assert 1.0 <= reading.seconds <= time.monotonic() - began
    assert reading.end.env_steps > 40  # the preset's own stop condition was disabled
    versions = reading.end.updates - reading.begin.updates
    steps = reading.end.env_steps - reading.begin.env_steps
    assert 0.8 * 20 * versions < steps <= 20 * versions + 40  # 4 unrolls of 5 steps per update, some of them resets
    assert reading.lag is not None
    assert set(reading.busy) == {"learner", "actors"}
    assert 0.5 < sum(reading.busy.values()) <= 1.1  # the clocks of the roles are not read at the same time
    assert list(tmp_path.glob("starling-*")) == []


def test_interrupt_ends_a_measurement():
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        throughput.watch(load("impala-cartpole", TOY), 60.0, lambda line: None)


START = Choice("inline", "local", actors=1, threads=1, num_envs=8)
WITH_PROCESSES = replace(START, runtime="processes")


def search_trials(speed, *, cores=4, vary_envs=False):
    """All trials of a search if `speed` gives the speed of each choice."""
    plan = tuning._plan(cores, vary_envs=vary_envs)
    return list(search([START, WITH_PROCESSES], plan, lambda choice: Trial(choice, speed(choice))))


def test_search_finds_a_combination_whose_first_step_does_not_help():
    def speed(choice):
        central = 1.5 if choice.inference == "central" else 1.0
        return 100.0 if choice.runtime == "inline" else 30.0 * central * choice.actors / choice.threads

    trials = search_trials(speed)
    assert fastest(trials).choice == Choice("processes", "central", actors=8, threads=1, num_envs=8)
    assert trials[0].choice == START
    assert len({trial.choice for trial in trials}) == len(trials) <= tuning.MOST_TRIALS
    assert {trial.choice.num_envs for trial in trials} == {8}
    assert any(trial.choice.threads == 4 for trial in trials if trial.choice.runtime == "inline")


def test_number_of_actors_is_tried_again_after_other_changes():
    def speed(choice):
        best = 4 if choice.inference == "central" else 1
        return 100.0 * (choice.inference == "central") - 10 * abs(choice.actors - best) + 200

    assert fastest(search_trials(speed)).choice.actors == 4


def test_number_of_envs_is_varied_only_if_requested_and_trials_are_limited():
    trials = search_trials(lambda choice: float(choice.num_envs), cores=2, vary_envs=True)
    assert fastest(trials).choice.num_envs == 32
    assert len(search_trials(lambda choice: float(choice.num_envs), cores=64, vary_envs=True)) <= tuning.MOST_TRIALS


def test_small_differences_do_not_change_the_choice():
    trials = [Trial(START, 100.0), Trial(WITH_PROCESSES, 102.0)]
    assert fastest(trials).choice == START
    assert fastest([*trials, Trial(replace(WITH_PROCESSES, actors=2), 104.0)]).choice.actors == 2
    assert fastest([Trial(START, 0.0, "refused"), Trial(WITH_PROCESSES, 1.0)]).choice == WITH_PROCESSES


def test_overrides_of_a_choice_reproduce_it():
    config = load("impala-cartpole", TOY)
    choice = Choice("processes", "central", actors=2, threads=1, num_envs=4)
    assert choice.apply(config) == load("impala-cartpole", [*TOY, *choice.overrides()])
    assert Choice.of(RunPlan.from_config(choice.apply(config))) == choice


def test_impossible_choice_is_skipped_with_its_reason():
    uneven = Choice("processes", "local", actors=2, threads=1, num_envs=3)
    trial = tuning.attempt(load("ppo-cartpole"), uneven, 60.0, pytest.fail)
    assert trial.steps_per_s == 0.0
    assert "equally many envs" in trial.refused
