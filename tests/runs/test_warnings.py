"""What is said of stale experience, of sequences that never fill and of losses not compiled: when, how, how often."""

import pytest

from starling.config.load import load
from starling.runs.warnings import ROWS, Watch, warnings

QUEUE, REPLAY = ("impala-cartpole", ["algo.max_lag=8"]), ("dqn-cartpole", ["algo.capacity=4000000"])
HEALTHY = {"episodes": 200, "episode_length": 30.0, "episode_longest": 48, "learner/lag": 5.0, "learner/lag_steps": 9.0}
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
            "actors and learner disagree in 25% of all choices and 72% of importance ratios are clipped"
            " (last 10 rows): lower algo.max_lag (8 now), env.num (16 now) or the learning rate",
        ),
        (
            QUEUE,
            {"learner__lag": 41.2},
            0,
            "what is learnt from is 41 updates old (last 10 rows):"
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
            " let algo.n_step be no more than that",
        ),
        (
            ("dqn-cartpole", ["algo.name=r2d2", "net.core.kind=lstm"]),
            {},
            120,
            "no episode fills a sequence of 120 steps: the last ones took 30 on average, 48 at most;"
            " let algo.burn_in + algo.unroll be no more than that",
        ),
        (
            REPLAY,
            {"learner__compiled": 0.0},
            1,
            "torch cannot compile this loss as a whole, so it is computed as with compile=false"
            " (TORCH_LOGS=graph_breaks says what is in the way)",
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
