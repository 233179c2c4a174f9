"""What is said of stale experience, of sequences that never fill and of losses not compiled: when, how, how often."""

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


def lines(start, rows, window=0):
    return [warned.line for warned in warnings(rows, load(*start), window)]


def rows_of(count=ROWS, **keys):
    return [{**HEALTHY, **{key.replace("__", "/"): value for key, value in keys.items()}}] * count


@pytest.mark.parametrize(
    ("start", "keys", "window", "expected"),
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
def test_what_is_wrong_and_what_to_do(start, keys, window, expected):
    assert lines(start, rows_of(**keys), window) == [expected]


@pytest.mark.parametrize(
    ("start", "keys", "window"),
    [
        (QUEUE, {"loss__off_policy": 0.05, "loss__clipped": 0.6}, 0),  # half the ratios lie above 1: nothing is wrong
        (QUEUE, {"learner__lag": 14.0}, 0),
        (REPLAY, {"learner__lag": 125_000.0, "learner__lag_steps": 500_000.0}, 1),
        (REPLAY, {}, 48),  # one episode was long enough
        (REPLAY, {"episodes": 3}, 49),  # too early to tell
        (REPLAY, {"episodes": 0, "episode_length": None, "episode_longest": None}, 49),
        (REPLAY, {"learner__lag": 100.0}, 1),  # replay may be older than a queue
    ],
)
def test_a_healthy_run_is_left_alone(start, keys, window):
    assert lines(start, rows_of(**keys), window) == []


def test_a_few_odd_rows_are_no_warning():
    calm, odd = {**HEALTHY, "loss/off_policy": 0.01, "loss/clipped": 0.3}, {**HEALTHY, **STALE}
    assert lines(QUEUE, [odd] * (ROWS - 1)) == []  # too few to tell
    assert lines(QUEUE, [calm] * 5 + [odd] * 5) == []
    assert lines(QUEUE, [calm] + [odd] * 9) != []


def test_each_is_said_once_and_again_after_it_has_been_away():
    watch, calm, odd = Watch(load(*QUEUE), 0), {**HEALTHY, "loss/off_policy": 0.0, "loss/clipped": 0.0}, HEALTHY | STALE
    looks = [watch.look(row) for row in [odd] * 30 + [calm] * 2 + [odd] * 20 + [calm] * 30 + [odd] * 20]
    said = [i for i, (_, new) in enumerate(looks) if new]
    assert said == [ROWS - 1, 30 + 2 + 20 + 30 + 8]  # 9 odd rows of 10 are enough
    assert all(now for now, _ in looks[ROWS - 1 : 30])
    assert not any(now for now, _ in looks[70:80])


def test_a_resumed_run_does_not_say_it_again():
    rows = [HEALTHY | STALE] * 25
    watch = Watch(load(*QUEUE), 0, rows)
    now, new = watch.look(rows[-1])
    assert now
    assert not new


def test_rows_of_an_earlier_version_are_understood():
    assert lines(REPLAY, [{"env_steps": 5, "episodes": 900, "episode_length": 4.0}] * ROWS, 49) == []


ENDLESS = ("ppo-cartpole", ["env.num=4", "stop.env_steps=80000", "checkpoint.every=80000"])  # a quarter: 5,000 of each


def idle_rows(*steps, episodes=3):
    """Rows of a run in which no episode has ended since 1,000 env steps."""
    return [HEALTHY | {"env_steps": step, "episodes": episodes} for step in (1000, *steps)]


def said(start, rows):
    watch = Watch(load(*start), 0)
    return [line for row in rows for line in watch.look(row)[1]]


def test_episodes_that_do_not_end_are_told_of_once_with_a_limit_to_set():
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
    [(100, 2000), (8 * 10**9, 100_000)],  # a short run waits for so many at least, a long one for so many at most
)
def test_a_quarter_of_the_run_is_waited_for_within_limits(steps, each):
    start = (ENDLESS[0], ["env.num=4", f"stop.env_steps={steps}"])
    assert said(start, idle_rows(1000 + 4 * each - 1)) == []
    assert len(said(start, idle_rows(1000 + 4 * each))) == 1


def test_a_resumed_run_still_waits_for_the_episode_it_waited_for():
    rows = idle_rows(*range(2000, 21_000, 1000))
    watch = Watch(load(*ENDLESS), 0, rows)
    (line,) = watch.look(HEALTHY | {"env_steps": 21_000, "episodes": 3})[1]
    assert line.startswith("no episode has ended in the last 5,000 steps")


def test_the_limit_that_is_suggested_ends_the_episodes_of_an_env_without_one(tmp_path):
    settings = ["env={id: CliffWalking-v1, num: 1}", "stop={env_steps: 2400}", "checkpoint.every=2400", "log.every=200"]
    settings += ["algo.epsilon=0", "algo.learning_starts=2300"]  # a policy that learned nothing walks into a wall
    folder = starling.train("dqn-cartpole", settings, runs=tmp_path).folder
    (line,) = [line for line in (folder / "log.txt").read_text().splitlines() if "warning:" in line]
    assert read_rows(folder / "metrics.jsonl")[-1]["episodes"] == 0
    (limit,) = re.findall(r"(env\.wrappers)='(.*)'", line)
    folder = starling.train("dqn-cartpole", [*settings, "=".join(limit)], runs=tmp_path).folder
    assert read_rows(folder / "metrics.jsonl")[-1]["episodes"] == 2
    assert "warning:" not in (folder / "log.txt").read_text()
