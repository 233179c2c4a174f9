"""Warnings about stale experience, sequences that never fill, and losses that are not compiled: when and how often."""

import re

import pytest

import starling
from starling.config.load import load
from starling.experiment.run_folder.metrics import read_rows
from starling.experiment.warnings import ROWS, Watch, warnings

QUEUE, REPLAY = ("impala-cartpole", ["algo.max_lag=8"]), ("dqn-cartpole", ["algo.capacity=4000000"])
REUSED = ("impact-cartpole", ["algo.max_times_sampled=8", "algo.buffer=4"])
HEALTHY = {
    "env_steps": 5,
    "episodes": 200,
    "episode_length": 30.0,
    "episode_longest": 48,
    "learner/lag": 5.0,
    "learner/lag_steps": 9.0,
}
STALE = {"loss/off_policy": 0.12, "loss/clipped": 0.72}


def lines(start, rows, sequence_length=0):
    return [warned.line for warned in warnings(rows, load(*start), sequence_length)]


def rows_of(count=ROWS, **keys):
    return [{**HEALTHY, **{key.replace("__", "/"): value for key, value in keys.items()}}] * count


@pytest.mark.parametrize(
    ("start", "keys", "sequence_length", "expected"),
    [
        (
            QUEUE,
            {"loss__off_policy": 0.25, "loss__clipped": 0.72},
            0,
            "actors and learner disagree in 25% of all actions and 72% of importance ratios are clipped"
            " (last 10 rows): lower algo.max_lag (8 now), env.num (16 now) or the learning rate",
        ),
        (
            REUSED,
            {"loss__off_policy": 0.25, "loss__clipped": 0.72},
            0,
            "actors and learner disagree in 25% of all actions and 72% of importance ratios are clipped"
            " (last 10 rows): lower algo.max_times_sampled (8 now), algo.buffer (4 now) or the learning rate",
        ),
        (
            QUEUE,
            {"learner__lag": 41.2},
            0,
            "training data is 41 updates old (last 10 rows):"
            " lower algo.max_lag (8 now), env.num (16 now) or raise the batch",
        ),
        (
            REPLAY,
            {"learner__lag": 400_000.0, "learner__lag_steps": 800_000.0},
            1,
            "replay is 400,000 updates or 800,000 env steps old on average (last 10 rows):"
            " lower algo.capacity (4,000,000 now) or algo.updates_per_step (0.5 now)",
        ),
        (
            REPLAY,
            {},
            49,
            "no episode fills a sequence of 49 steps: the last ones took 30 on average, 48 at most;"
            " lower algo.n_step to at most that",
        ),
        (
            ("dqn-cartpole", ["algo.name=r2d2", "net.core.kind=lstm"]),
            {},
            120,
            "no episode fills a sequence of 120 steps: the last ones took 30 on average, 48 at most;"
            " lower algo.burn_in + algo.unroll to at most that",
        ),
        (
            REPLAY,
            {"learner__compiled": 0.0},
            1,
            "torch cannot compile this loss as a whole, so it is computed as with compile=false"
            " (TORCH_LOGS=graph_breaks shows why)",
        ),
    ],
)
def test_warnings_say_what_is_wrong_and_what_to_do(start, keys, sequence_length, expected):
    assert lines(start, rows_of(**keys), sequence_length) == [expected]


@pytest.mark.parametrize(
    ("start", "keys", "sequence_length"),
    [
        (QUEUE, {"loss__off_policy": 0.05, "loss__clipped": 0.6}, 0),  # half of the ratios are above 1: this is normal
        (QUEUE, {"learner__lag": 14.0}, 0),
        (REPLAY, {"learner__lag": 125_000.0, "learner__lag_steps": 500_000.0}, 1),
        (REPLAY, {}, 48),  # one episode was long enough
        (REPLAY, {"episodes": 3}, 49),  # too early to tell
        (REPLAY, {"episodes": 0, "episode_length": None, "episode_longest": None}, 49),
        (REPLAY, {"learner__lag": 100.0}, 1),  # replay may be older than a queue
    ],
)
def test_healthy_run_has_no_warnings(start, keys, sequence_length):
    assert lines(start, rows_of(**keys), sequence_length) == []


def test_a_few_stale_rows_cause_no_warning():
    normal, stale = {**HEALTHY, "loss/off_policy": 0.01, "loss/clipped": 0.3}, {**HEALTHY, **STALE}
    assert lines(QUEUE, [stale] * (ROWS - 1)) == []  # too few rows to tell
    assert lines(QUEUE, [normal] * 5 + [stale] * 5) == []
    assert lines(QUEUE, [normal] + [stale] * 9) != []


def test_warning_is_given_once_and_again_after_it_was_resolved():
    watch, normal, stale = (
        Watch(load(*QUEUE), 0),
        {**HEALTHY, "loss/off_policy": 0.0, "loss/clipped": 0.0},
        HEALTHY | STALE,
    )
    looks = [watch.look(row) for row in [stale] * 30 + [normal] * 2 + [stale] * 20 + [normal] * 30 + [stale] * 20]
    said = [i for i, (_, new) in enumerate(looks) if new]
    assert said == [ROWS - 1, 30 + 2 + 20 + 30 + 8]  # 9 stale rows of 10 are enough
    assert all(now for now, _ in looks[ROWS - 1 : 30])
    assert not any(now for now, _ in looks[70:80])


def test_resumed_run_does_not_repeat_a_warning():
    rows = [HEALTHY | STALE] * 25
    watch = Watch(load(*QUEUE), 0, rows)
    now, new = watch.look(rows[-1])
    assert now
    assert not new


def test_rows_of_an_earlier_version_are_accepted():
    assert lines(REPLAY, [{"env_steps": 5, "episodes": 900, "episode_length": 4.0}] * ROWS, 49) == []


# A quarter: 5,000 steps of each env.
ENDLESS = ("ppo-cartpole", ["env.num=4", "stop.env_steps=80000", "checkpoint.every=80000"])


def idle_rows(*steps, episodes=3):
    """Rows of a run in which no episode has ended since env step 1,000."""
    return [HEALTHY | {"env_steps": step, "episodes": episodes} for step in (1000, *steps)]


def said(start, rows):
    watch = Watch(load(*start), 0)
    return [line for row in rows for line in watch.look(row)[1]]


def test_endless_episodes_cause_one_warning_with_a_time_limit_to_set():
    assert said(ENDLESS, idle_rows(20_999)) == []
    assert said(ENDLESS, idle_rows(*range(2000, 60_000, 1000))) == [
        "no episode has ended in the last 5,000 steps of each env, so there is no new score: if CartPole-v1 has no time"
        " limit, give it one, e.g. env.wrappers='[{name: TimeLimit, args: {max_episode_steps: 1000}}]'"
    ]
    _, again = said(ENDLESS, [*idle_rows(21_000), *idle_rows(*range(22_000, 60_000, 1000), episodes=4)[1:]])
    assert again.startswith("no episode has ended in the last 5,000 steps")
    (first,) = said((ENDLESS[0], [*ENDLESS[1], "env.wrappers=[{name: ClipAction}]"]), idle_rows(21_000))
    assert "env.wrappers='[{name: ClipAction}, {name: TimeLimit, args: {max_episode_steps: 1000}}]'" in first
    exact = [*ENDLESS[1], "checkpoint.every=3000", "checkpoint.exact=true"]
    (first,) = said((ENDLESS[0], exact), idle_rows(21_000))
    assert "; checkpoint.exact cuts its episodes every 750 steps: raise checkpoint.every" in first


@pytest.mark.parametrize(
    ("steps", "each"),
    [(100, 2000), (8 * 10**9, 100_000)],  # a minimum for short runs, a maximum for long ones
)
def test_endless_episodes_are_reported_after_a_quarter_of_the_run_within_limits(steps, each):
    start = (ENDLESS[0], ["env.num=4", f"stop.env_steps={steps}"])
    assert said(start, idle_rows(1000 + 4 * each - 1)) == []
    assert len(said(start, idle_rows(1000 + 4 * each))) == 1


def test_resumed_run_continues_to_wait_for_an_episode_end():
    rows = idle_rows(*range(2000, 21_000, 1000))
    watch = Watch(load(*ENDLESS), 0, rows)
    (line,) = watch.look(HEALTHY | {"env_steps": 21_000, "episodes": 3})[1]
    assert line.startswith("no episode has ended in the last 5,000 steps")


def test_suggested_time_limit_ends_the_episodes_of_an_endless_env(tmp_path):
    settings = ["env={id: CliffWalking-v1, num: 1}", "stop={env_steps: 2400}", "checkpoint.every=2400", "log.every=200"]
    settings += ["algo.epsilon=0", "algo.learning_starts=2300"]  # an untrained policy walks into a wall
    folder = starling.train("dqn-cartpole", settings, runs=tmp_path).folder
    (line,) = [line for line in (folder / "log.txt").read_text().splitlines() if "warning:" in line]
    assert read_rows(folder / "metrics.jsonl")[-1]["episodes"] == 0
    (limit,) = re.findall(r"(env\.wrappers)='(.*)'", line)
    folder = starling.train("dqn-cartpole", [*settings, "=".join(limit)], runs=tmp_path).folder
    assert read_rows(folder / "metrics.jsonl")[-1]["episodes"] == 2
    assert "warning:" not in (folder / "log.txt").read_text()


@pytest.mark.parametrize(
    ("start", "key"),
    [
        (("r2d2-novelty-deepsea", []), "curiosity.0.within.neighbours (3 now)"),
        (("r2d2-rnd-deepsea", ["curiosity=[{kind: episodic}]"]), "curiosity.0.neighbours (10 now)"),
        (("ngu-deepsea", []), "algo.episodic.neighbours (3 now)"),
    ],
)
def test_episodes_too_short_for_episodic_novelty(start, key):
    (line,) = lines(start, rows_of(episode_longest=3))
    assert line == f"no episode is longer than 3 steps, so its novelty is always 0: lower {key}"
    assert lines(start, rows_of(episode_longest=20)) == []
    assert lines(start, rows_of(episode_longest=3, episodes=2)) == []
