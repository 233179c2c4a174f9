"""The same agent, unchanged, learns under every topology.

`make test` covers every pair of choices, and Ray with one agent of each kind; `make matrix` (STARLING_MATRIX=whole)
covers every combination and variants of agents.
"""

import itertools
import os
import time

import pytest
from support.agents import AGENTS, SMALL, VARIANTS
from support.metric_rows import problems

from starling.config.algorithms import ALGORITHMS
from starling.config.load import load
from starling.experiment.run_folder.metrics import Scoreboard
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

ON_RAY = ["apex", "dqn", "ngu", "ppo", "impala", "sac", "impala elite lstm", "impact", "r2d2"]
"""One agent of each kind; Ray distributes the parts of any agent in the same way."""

RUNTIMES = {
    "inline": ["runtime=inline"],
    "processes": ["runtime=processes"],
    "two learners": ["runtime=processes", "learners=2"],
    "ray": ["runtime=ray"],
}
whole = os.environ.get("STARLING_MATRIX") == "whole"
if whole:
    AGENTS = AGENTS | VARIANTS
    RUNTIMES["ray, two learners"] = ["runtime=ray", "learners=2"]
AXES = {
    "agent": list(AGENTS),
    "runtime": list(RUNTIMES),
    "inference": ["local", "central"],
    "actors": [1, 2],  # per learner
}
STEPS = 16_000


def pairs(row: tuple) -> set:
    return set(itertools.combinations(enumerate(row), 2))


def covering_rows(rows: list[tuple]) -> list[tuple]:
    """A small subset of the rows, chosen greedily, that contains every pair of choices in any row."""
    missing, chosen = set().union(*map(pairs, rows)), []
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def marks(runtime: str) -> list:
    """The quick tests run every agent in one process; `tests/runtime` covers what several processes add."""
    return [pytest.mark.ray] if "ray" in runtime else [pytest.mark.slow] if runtime != "inline" else []


COMBINATIONS = [row for row in itertools.product(*AXES.values()) if whole or row[1] != "ray" or row[0] in ON_RAY]
ROWS = COMBINATIONS if whole else covering_rows(COMBINATIONS)


def test_every_algorithm_is_in_the_matrix():
    built_in = {name for name, entry in ALGORITHMS if str(entry.target).startswith("starling.")}
    assert {agent.split()[0] for agent in AGENTS} == built_in


def test_every_pair_of_choices_is_covered():
    assert set().union(*map(pairs, ROWS)) == set().union(*map(pairs, COMBINATIONS))
    for choices, axis in zip(zip(*COMBINATIONS, strict=True), AXES.values(), strict=True):
        assert set(choices) == set(axis)


@pytest.mark.parametrize(
    ("agent", "runtime", "inference", "actors"),
    [pytest.param(*row, marks=marks(row[1])) for row in ROWS],
)
def test_agent_learns_its_toy_problem(agent, runtime, inference, actors, request):
    """16 rounds with four actions: 4 by chance, 16 at best; 5.3 by chance in toy/match."""
    if "ray" in runtime:
        request.getfixturevalue("local_ray")
    preset, settings = AGENTS[agent]
    actors *= 1 + ("two learners" in runtime)
    topology = [*RUNTIMES[runtime], f"inference={inference}", f"actors={actors}", f"stop.env_steps={STEPS}"]
    system = build_runtime(RunPlan.from_config(load(preset, [*SMALL, *settings, *topology])))
    scores, end = Scoreboard(window=50), time.monotonic() + 480
    try:
        for _ in system.run():
            scores.add(system.episodes())
            assert not system.notices()
            if (scores.full and scores.mean > 14) or system.env_steps >= STEPS or time.monotonic() > end:
                break
        assert not problems(system.drain_metrics())
    finally:
        system.close()
    assert scores.mean > 14, f"after {system.env_steps} env steps and {system.updates} updates"
