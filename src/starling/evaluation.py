"""Plays a trained agent and says what it scores."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starling import topology
from starling.envs.registry import make_env
from starling.roles.evaluator import play_episodes
from starling.roles.policy import Policy
from starling.runs import checkpoint, folder

MAX_ROWS = 8
"""Envs that are stepped at once in an evaluation."""


def evaluate_run(run: Path, *, episodes: int, seed: int, warn: Callable[[str], None]) -> dict[str, Any]:
    """Raw scores of `episodes` episodes of the newest agent, without exploration."""
    place = folder.find(run)
    chosen, state, problems = checkpoint.load_newest(place.checkpoints)
    for problem in problems:
        warn(f"checkpoint skipped: {problem}")
    blueprint = topology.draw(place.config())
    topology.set_up_torch(blueprint)
    model = topology.build_model(blueprint)
    model.load_state_dict(state["learner"]["model"])
    rows = min(episodes, MAX_ROWS)
    policy = Policy(blueprint.algorithm, model, total_rows=rows, explore=False)
    env = make_env(blueprint.config.env, rows)
    totals = play_episodes(policy, env, episodes=episodes, seed=seed)
    env.close()
    return {
        "mean": statistics.fmean(totals),
        "median": statistics.median(totals),
        "std": statistics.stdev(totals) if len(totals) > 1 else 0.0,
        "episodes": len(totals),
        "protocol": {"env": blueprint.env.id, "seed": seed, "explore": False, "checkpoint": chosen.name},
    }
