"""The line about the bottleneck of a run: every rule, and rows with missing values."""

import numpy as np
import pytest

from starling.actor.usage import CELLS, Usage
from starling.config.load import load
from starling.experiment.bottleneck import ROWS, Bottleneck, bottleneck
from starling.runtime.supervisor import batching
from starling.runtime.worker import Member

QUEUE = ["runtime=processes", "algo.max_lag=1"]
REPLAY = ["runtime=processes", "algo.updates_per_step=0.25"]


def line(preset, overrides, **shares):
    row = {f"time/{key.replace('__', '/')}": value for key, value in shares.items()}
    return bottleneck({"env_steps": 5, "return": None, **row}, load(preset, overrides))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        (
            {"learner__busy": 0.98, "actors__busy": 0.4, "actors__wait_out": 0.6},
            "learner busy 98%: more actors will not help; a smaller network, a larger batch, or more threads would",
        ),
        (
            {"learner__busy": 0.6, "learner__wait_in": 0.4, "actors__busy": 0.97},
            "actors busy 97%, learner waits 40%: more actors or cheaper envs would help",
        ),
        (
            {"learner__busy": 0.96, "actors__busy": 0.97},
            "learner busy 96%, actors busy 97%: balanced; only more cores would help both",
        ),
        (
            {"learner__busy": 0.96, "actors__busy": 0.2, "actors__wait_in": 0.8, "inference__busy": 0.9},
            "learner busy 96%, inference busy 90%: balanced; only more cores would help both",
        ),
        (
            {"learner__busy": 0.5, "learner__wait_in": 0.45, "actors__busy": 0.4, "actors__wait_out": 0.5},
            "limited by algo.max_lag=1: learner waits 45%, actors wait 50%; both wait for each other",
        ),
        (
            {"learner__busy": 0.5, "learner__wait_in": 0.4, "actors__busy": 0.3, "hub__busy": 0.97},
            "hub busy 97%, learner waits 40%: smaller batches or observations would help",
        ),
        (
            {"learner__busy": 0.5, "actors__busy": 0.3, "actors__wait_in": 0.7, "inference__busy": 0.95},
            "inference busy 95%: more envs, a smaller network, or inference=local would help",
        ),
        (
            {"learner__busy": 0.5, "actors__busy": 0.3, "inference__busy": 0.95, "inference__batch": 11.6},
            "inference busy 95% with batches of 12 envs:"
            " more envs, a smaller network, or inference=local would help",
        ),
        (
            {"learner__busy": 0.3, "learner__wait_in": 0.7, "actors__busy": 0.4, "actors__wait_in": 0.6,
             "inference__busy": 0.35, "inference__wait_ms": 2.0},
            "actors wait 60% for actions, inference busy 35% and waits 2.0 ms per batch:"
            " more actors or a shorter batching.wait_ms would help",
        ),
        (
            {"learner__busy": 0.3, "learner__wait_in": 0.7, "actors__busy": 0.4, "actors__wait_in": 0.6,
             "inference__busy": 0.35, "inference__wait_out": 0.5},
            "limited by algo.max_lag=1: learner waits 70%, actors wait 50%; both wait for each other",
        ),
        (
            {"learner__busy": 0.8, "learner__wait_in": 0.1, "actors__busy": 0.5, "actors__wait_out": 0.5},
            "learner busy 80%: more actors will not help; a smaller network, a larger batch, or more threads would",
        ),
        (
            {"learner__busy": 0.6, "learner__wait_in": 0.4, "actors__busy": 0.8, "actors__wait_out": 0.1},
            "actors busy 80%, learner waits 40%: more actors or cheaper envs would help",
        ),
        ({"learner__busy": 0.7, "actors__busy": 0.75}, "no clear limit: learner busy 70%, actors busy 75%"),
    ],
)  # fmt: skip
def test_bottleneck_of_a_run_with_processes(shares, expected):
    assert line("ppo-cartpole", QUEUE, **shares) == expected


def test_all_reduce_counts_as_learning_and_is_shown():
    two_learners = [*QUEUE, "learners=2"]
    shares = {"learner__busy": 0.6, "learner__reduction": 0.32, "actors__busy": 0.4, "actors__wait_out": 0.6}
    assert line("ppo-cartpole", two_learners, **shares) == (
        "learner busy 92% (32% all-reduce): more actors will not help;"
        " a smaller network, a larger batch, or more threads would"
    )
    assert line("ppo-cartpole", two_learners, **{**shares, "actors__busy": 0.9}).startswith(
        "learner busy 92% (32% all-reduce), actors busy 90%: balanced;"
    )
    assert line("ppo-cartpole", two_learners, learner__busy=0.3, learner__reduction=0.2, actors__busy=0.5) == (
        "no clear limit: learner busy 50% (20% all-reduce), actors busy 50%"
    )


def test_learner_that_works_in_bursts_is_averaged_over_time():
    """Nine short rows of acting and one long row of learning, repeatedly: 0.9 s of every 1.8 s."""
    limits = Bottleneck(load("dqn-cartpole", []))
    now, said = 100.0, []  # the clock of a resumed run starts at 0, but its first row may come late
    for number in range(3 * ROWS):
        learns = number % ROWS == ROWS - 1
        now += 0.9 if learns else 0.1
        row = {"time/learner/busy": float(learns), "time/actors/busy": float(not learns), "time/seconds": now}
        said.append(limits.line({**row, "time/bottleneck": "an older line"}))
    assert set(said[ROWS:]) == {"one process: 50% learning, 50% acting; runtime=processes overlaps them"}


def test_server_waits_in_nanoseconds_are_reported_in_milliseconds():
    cells = [np.zeros(len(CELLS), np.int64) for _ in range(2)]
    for server_cells in cells:  # two servers with 100 replies each, after a wait of 2.5 ms
        usage = Usage(server_cells)
        usage.add("calls", 100)
        usage.add("envs", 800)
        usage.add("waited", 100 * 2_500_000)
        usage.set("budget", 4_000_000)
    found = batching([Member("inference", f"inference {i}", server_cells) for i, server_cells in enumerate(cells)])
    assert found == {"time/inference/batch": 8, "time/inference/wait_ms": 2.5, "time/inference/budget_ms": 4}
    shares = {
        "time/learner/busy": 0.3,
        "time/learner/wait_in": 0.7,
        "time/actors/busy": 0.4,
        "time/actors/wait_in": 0.6,
    }
    said = bottleneck({**shares, **found}, load("ppo-cartpole", QUEUE))
    assert said.startswith("actors wait 60% for actions, inference busy 0% and waits 2.5 ms per batch: ")


def test_bottleneck_with_replay_names_updates_per_step():
    assert line("dqn-cartpole", REPLAY, learner__busy=0.98, actors__busy=0.4) == (
        "learner busy 98%: more actors will not help;"
        " a smaller network, a lower algo.updates_per_step, or more threads would"
    )
    both = {"learner__busy": 0.3, "learner__wait_in": 0.7, "actors__busy": 0.5, "actors__wait_out": 0.5}
    assert line("dqn-cartpole", REPLAY, **both).startswith("limited by algo.updates_per_step=0.25: ")


@pytest.mark.parametrize(
    ("learning", "acting", "expected"),
    [
        (0.62, 0.38, "one process: 62% learning, 38% acting; runtime=processes overlaps them"),
        (0.31, 0.19, "one process: 62% learning, 38% acting; runtime=processes overlaps them"),
        (0.95, 0.05, "one process: 95% learning, 5% acting;"
                     " a smaller network, a larger batch, or more threads would help"),
        (0.05, 0.9, "one process: 5% learning, 95% acting;"
                    " runtime=processes with several actors, or cheaper envs, would help"),
        (0.0, 0.0, None),
    ],
)  # fmt: skip
def test_bottleneck_of_one_process_has_two_shares(learning, acting, expected):
    assert line("ppo-cartpole", [], learner__busy=learning, actors__busy=acting) == expected


@pytest.mark.parametrize("overrides", [[], QUEUE])
@pytest.mark.parametrize("shares", [{}, {"learner__busy": 0.9}, {"actors__busy": 0.9}, {"steps_per_s": 100.0}])
def test_no_bottleneck_with_missing_values(overrides, shares):
    assert line("ppo-cartpole", overrides, **shares) is None
