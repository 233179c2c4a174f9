"""Numbers with a unit, and the limits and schedules of a run that they describe."""

import pytest

from starling.config.load import from_dict, load, to_dict, to_saved
from starling.config.quantities import Quantity
from starling.errors import UserError
from starling.launch.plan import RunPlan

CONSTANT = ["algo.epsilon=0.1", "algo.optimizer.schedule=null"]
UNLIMITED = ["stop.env_steps=null", "stop.return=null", *CONSTANT]


def every(text):
    return load("dqn-cartpole", [f"log.every={text}"]).log_every


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("1000", 1000, "env steps"),
        ("'1000'", 1000, "env steps"),
        ("1e6 steps", 1_000_000, "env steps"),
        ("500 updates", 500, "updates"),
        ("1 update", 1, "updates"),
        ("10episodes", 10, "episodes"),
        ("'40,000 Frames'", 40_000, "frames"),
        ("40_000 frames", 40_000, "frames"),
        ("2 min", 2.0, "minutes"),
        ("1.5 minutes", 1.5, "minutes"),
        ("90 s", 1.5, "minutes"),
        ("2 hours", 120.0, "minutes"),
    ],
)
def test_intervals_are_understood(text, amount, unit):
    assert every(text) == Quantity(amount, unit)


@pytest.mark.parametrize(
    ("text", "rounded"), [("4 s", "0.067"), ("100 s", "1.67"), ("1440 min", "1440"), ("1e6", "1,000,000")]
)
def test_amounts_are_rounded_for_readers(text, rounded):
    assert Quantity.parse(text, "env steps").rounded == rounded


def test_configuration_survives_saving():
    settings = ["eval.every=10 episodes", "log.every=2 min", "algo.target_every=1e4 env steps", "fetch_every=5 updates"]
    config = load("dqn-cartpole", [*settings, "algo.epsilon={start: 1, end: 0, steps: 500 updates}"])
    assert from_dict(to_dict(config)) == config
    saved = to_saved(config)
    assert (saved["eval"]["every"], saved["log"]["every"]) == ("10 episodes", "2.0 minutes")
    assert (saved["algo"]["target_every"], saved["fetch_every"]) == ("10000 env steps", 5)
    assert saved["algo"]["epsilon"]["steps"] == "500 updates"


def test_a_plain_number_stays_a_plain_number():
    saved = to_saved(load("dqn-cartpole", ["eval.every=500", "log.every=70 env steps", "algo.target_every=9 updates"]))
    assert (saved["eval"]["every"], saved["log"]["every"], saved["algo"]["target_every"]) == (500, 70, 9)


def refusal(*settings, preset="dqn-cartpole"):
    with pytest.raises(UserError) as caught:
        RunPlan.from_config(load(preset, settings))
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("eval.every=5 updats", "eval.every: unknown unit 'updats'; did you mean 'updates'?"),
        ("log.every=3 fortnights", "unknown unit 'fortnights' (units: env steps, frames, updates, episodes, minutes)"),
        ("log.every=often", "log.every: must be a number of env steps, or with a unit, e.g. 500 updates"),
        ("log.every=1.5 updates", "must be a whole number of updates"),
        ("log.every=0 updates", "must be above 0"),
        (f"log.every={'9' * 400} updates", "log.every: must be at most 1,000,000,000,000 (at 10,000 steps"),
        (f"log.every={'9' * 400} min", "log.every: must be at most 1,000,000,000,000 (at 10,000 steps"),
        (f"stop.updates={'9' * 400} updates", "stop.updates: must be at most 1,000,000,000,000"),
        (f"algo.optimizer.schedule.args.total_iters={'9' * 400} updates", "must be at most 1,000,000,000,000"),
        ("log.every=0", "log.every: must be at least 1, not 0"),
        ("log.every=true", "log.every: must be an integer, at least 1, text such as 500 updates"),
        ("algo.target_every=3 min", "algo.target_every: must be in updates or env steps, not '3 min"),
        ("algo.epsilon={start: 1, end: 0, steps: 9 frames}", "must be in env steps or updates"),
        ("algo.optimizer.schedule.args.total_iters=3 episodes", "total_iters must be in updates or env steps"),
        ("algo.optimizer.schedule={name: MultiStepLR, args: {milestones: [5, 9 env steps]}}", "must be in one unit"),
        ("fetch_every=3 min", "fetch_every: must be in updates"),
        ("stop.env_steps=500 updates", "stop.env_steps: counts env steps; write stop.updates=500"),
        ("stop.minutes=10 episodes", "stop.minutes: counts minutes; write stop.episodes=10"),
        ("stop={env_steps: 5, frames: 5}", "give either env_steps or frames"),
        ("stop={env_steps: 5, episodes: 6}", "episodes=6 can never be reached"),
        (
            "stop.updates=1000000",
            "stop.updates=1,000,000 can never be reached: stop.env_steps ends the run after",
        ),
    ],
)
def test_mistakes_are_explained(setting, message):
    assert message in refusal(setting)


def test_limits_in_their_own_unit():
    stop = load("dqn-cartpole", ["stop.minutes=2 h", "stop.updates=500 updates", "stop.frames=4e5"]).stop
    assert (stop.minutes, stop.updates, stop.frames, stop.env_steps) == (120.0, 500, 400_000, None)


def test_env_steps_may_be_null_beside_another_limit():
    for limit in ("updates=10", "episodes=10", "minutes=1", "return=5", "frames=100"):
        assert load("dqn-cartpole", [*UNLIMITED, f"stop.{limit}"]).stop.env_steps is None
    assert "nothing ends the run" in refusal(*UNLIMITED)


def test_schedule_over_the_run_needs_its_length():
    endless = ["stop.env_steps=null", "stop.minutes=5"]
    assert "algo.epsilon is a schedule over the run" in refusal(*endless)
    assert "algo.optimizer.schedule is a schedule" in refusal(*endless, "algo.epsilon=0.1")
    assert "algo.prioritized.beta is a schedule" in refusal(*endless, *CONSTANT, "algo.prioritized={}")
    q = "nets={q: {optimizer: {schedule: {name: LinearLR, args: {total_iters: run}}}}}"
    assert "nets.q.optimizer.schedule is a schedule" in refusal(*endless, *CONSTANT, q)
    assert "set stop.updates" in refusal(*endless)
    assert load("dqn-cartpole", ["stop.env_steps=null", "stop.updates=100"]).stop.updates == 100
    elite = "algo.sources=[{kind: elite, share: 0.5, capacity: 64}, {kind: queue, share: 0.5}]"
    settings = [*endless, "algo.optimizer.schedule=null", elite]
    assert "lambda of algo.sources falls over the run" in refusal(*settings, preset="impala-minatar-breakout")


def test_updates_that_come_before_the_end_are_a_limit():
    assert RunPlan.from_config(load("dqn-cartpole", ["stop.updates=74000"]))
    assert RunPlan.from_config(load("dqn-cartpole", ["stop.updates=1000000", "algo.updates_per_step=null"]))
    assert RunPlan.from_config(load("dqn-cartpole", ["stop.updates=1000000", "stop.env_steps=null"]))
    assert "learning starts after 1,000 of them" in refusal("stop.updates=1", "stop.env_steps=400")
    assert "can never be reached" in refusal("stop.updates=100000", preset="ppo-cartpole")


def test_exact_checkpoints_do_not_depend_on_the_clock():
    assert "set checkpoint.every in env steps" in refusal("checkpoint.exact=true", "checkpoint.every=2 min")


def test_intervals_are_a_part_of_the_run_by_default():
    config = load("dqn-cartpole", ["stop.env_steps=null", "stop.updates=1000"])
    assert (config.checkpoint_every, config.log_every) == (Quantity(100, "updates"), Quantity(10, "updates"))
    config = load("dqn-cartpole", ["stop.env_steps=null", "stop.minutes=10", *CONSTANT])
    assert config.log_every == Quantity(0.1, "minutes")


def test_length_of_a_run_in_frames_is_that_in_env_steps():
    frames = RunPlan.from_config(load("dqn-atari", ["stop.frames=4002"]))
    assert (frames.length.env_steps, frames.length.updates) == (1001, None)
    updates = RunPlan.from_config(load("dqn-atari", ["stop.env_steps=null", "stop.updates=50"])).length
    assert (updates.progress(10**6, 25).fraction, updates.progress(0, 100).fraction) == (0.5, 1.0)


def test_actors_that_wait_for_every_update_fetch_its_weights():
    assert "fetch_every=2 is for algorithms whose actors do not wait" in refusal("fetch_every=2", preset="ppo-cartpole")
