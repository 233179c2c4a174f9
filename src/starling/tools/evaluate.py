"""Evaluate a trained agent by a named protocol."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starling.actor.core import Policy
from starling.actor.evaluator import MAX_ENVS, Played, play_episodes
from starling.config.schema import Config
from starling.envs.registry import make_env
from starling.errors import UserError
from starling.experiment.run_folder import checkpoint, folder
from starling.experiment.run_folder.checkpoint_schema import state_check
from starling.hardware import on_device_here, set_up_torch
from starling.launch.plan import RunPlan, build_model, check_finite, check_network, load_weights, plan_threads
from starling.launch.sizes import checkpoint_limits
from starling.tools.video import draw_without_a_screen, write_video
from starling.types import Progress

PROTOCOLS: dict[str, dict[str, Any]] = {
    "as-trained": {},
    "noop": {"noop_max": 30, "sticky": 0.0, "episodic_life": False, "max_frames": 108_000},
    "sticky": {"noop_max": 0, "sticky": 0.25, "episodic_life": False, "max_frames": 108_000},
}
"""Evaluation protocols, as changes of `env.atari`: random no-op starts, or sticky actions (1709.06009)."""


@dataclass(frozen=True)
class TrainedAgent:
    """The agent of a checkpoint: its model, its training progress, and the policy to evaluate (`arm`) of several."""

    run_plan: RunPlan
    model: torch.nn.Module
    progress: Progress
    checkpoint: Path
    arm: int = 0

    def policy(self, *, explore: bool, num_envs: int | None = None) -> Policy:
        """Build a policy that acts as in training at this checkpoint, or without exploration."""
        count = self.run_plan.config.env.num if num_envs is None else num_envs
        policy = Policy(self.run_plan.algorithm, self.model, num_envs=count, explore=explore)
        policy.progress, policy.arm = self.progress, self.arm
        return policy

    def with_epsilon(self, epsilon: float) -> TrainedAgent:
        """Return the same agent with another `eval_epsilon`: its probability of random actions in evaluation."""
        config = self.run_plan.config
        if not hasattr(config.algo, "eval_epsilon"):
            raise UserError(f"{config.algo.name} has no epsilon; --sample takes actions from its policy")
        algo = config.algo.model_copy(update={"eval_epsilon": epsilon})
        run_plan = RunPlan.from_config(config.model_copy(update={"algo": algo}), self.run_plan.env)
        model = build_model(run_plan)
        model.load_state_dict(self.model.state_dict())
        return replace(self, run_plan=run_plan, model=model)

    def greedy_actions(self) -> str:
        """Name the rule by which actions are chosen without exploration."""
        epsilon = getattr(self.run_plan.config.algo, "eval_epsilon", None)
        played = f", policy {self.arm}" if self.run_plan.algorithm.trials() is not None else ""
        return "likeliest" if epsilon is None else f"epsilon {epsilon:g}{played}"


def load_agent(
    run: Path, *, which: str, protocol: str, warn: Callable[[str], None], allow: Sequence[str] = ()
) -> TrainedAgent:
    """Load the trained agent of a run from a checkpoint, with its env set up for `protocol`.

    Of several policies it plays the best one in the evaluator's trials so far, or the first, which exploits, if there
    was no evaluation. A run folder that another user made may import only the packages in `allow`.
    """
    place = folder.find(run, allow)
    config = on_device_here(with_protocol(place.config(), protocol), warn)
    run_plan = RunPlan.from_config(config)
    check_network(run_plan)
    model = build_model(run_plan)
    parts, limits = ("learner", "evaluator"), checkpoint_limits(run_plan, model)
    check_form = state_check("learner")

    def check(state: dict[str, Any]) -> None:
        check_form(state)
        check_finite(model, state["learner"]["model"])

    chosen, state, problems = checkpoint.find(place.checkpoints, which, parts, check, limits)
    for problem in problems:
        warn(f"checkpoint skipped: {problem}")
    with checkpoint.fitting(f"{run} ({chosen.name})"):
        load_weights(model, state["learner"]["model"], f"{run} ({chosen.name})")
    updates = state["learner"]["updates"]
    progress = run_plan.progress(checkpoint.steps_of(chosen), updates)
    trials, arm = run_plan.algorithm.trials(), 0
    if trials is not None:
        with checkpoint.fitting(f"{run} ({chosen.name})"):
            trials.set_state(state.get("evaluator", {}))
            arm = trials.best
    return TrainedAgent(run_plan, model, progress, chosen, arm)


def with_protocol(config: Config, protocol: str) -> Config:
    """Return the configuration with the env settings of `protocol`."""
    if protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {protocol!r}; choose one of {', '.join(PROTOCOLS)}")
    if protocol != "as-trained" and not config.env.id.startswith("ALE/"):
        raise UserError(f"protocol {protocol} is for ALE/ environments; {config.env.id} supports only as-trained")
    atari = config.env.atari.model_copy(update=PROTOCOLS[protocol])
    return config.model_copy(update={"env": config.env.model_copy(update={"atari": atari})})


def evaluate_run(
    run: Path,
    *,
    episodes: int,
    seed: int | Sequence[int],
    which: str,
    protocol: str,
    warn: Callable[[str], None],
    sample: bool = False,
    epsilon: float | None = None,
    allow: Sequence[str] = (),
    video: Path | None = None,
) -> dict[str, Any]:
    """Evaluate a run's agent over `episodes` whole games per seed; returns the raw returns, and the protocol.

    Args:
        seed: Seed of the envs, or several; the games of a seed do not depend on the others.
        sample: Sample actions from the policy's distribution, as in training, instead of the most likely ones.
        epsilon: Probability of a random action, for Q-learning; None: algo.eval_epsilon.
        allow: Packages that may be imported if another user made the run folder.
        video: File to record the games of the first env of each seed in.
    """
    seeds = [seed] if isinstance(seed, int) else list(seed)
    if video is not None:
        draw_without_a_screen()
    agent = load_agent(run, which=which, protocol=protocol, warn=warn, allow=allow)
    algo = agent.run_plan.config.algo
    if sample and hasattr(algo, "eval_epsilon"):
        raise UserError(f"{algo.name} has no distribution to sample from; give --epsilon, e.g. --epsilon 0.05")
    if epsilon is not None:
        agent = agent.with_epsilon(epsilon)
    set_up_torch(plan_threads(agent.run_plan))
    games = _Games(agent, episodes, seeds, explore=sample, render=video is not None)
    try:
        if video is None:
            deque(games.play(), maxlen=0)
        else:
            write_video(video, (games.env.render() for is_shown in games.play() if is_shown), games.env.pace)
    finally:
        games.env.close()
    return {
        **summarize([game.total for _, game in games.played]),
        "returns": [game.total for _, game in games.played],
        "lengths": [game.length for _, game in games.played],
        "seeds": [seed for seed, _ in games.played],
        "protocol": protocol,
        "actions": "sampled" if sample else agent.greedy_actions(),
        "env": agent.run_plan.env.id,
        "seed": seeds[0],
        "checkpoint": agent.checkpoint.name,
    }


class _Games:
    """Plays the games of an evaluation; `played` has each with its seed, in the order of seeds and envs."""

    def __init__(
        self, agent: TrainedAgent, episodes: int, seeds: Sequence[int], *, explore: bool, render: bool
    ) -> None:
        self._episodes, self._seeds = episodes, seeds
        settings = agent.run_plan.config.env
        self._reward_clip = settings.reward_clip
        self.env = make_env(settings, min(episodes, MAX_ENVS), render=render)
        self._policy = agent.policy(explore=explore, num_envs=self.env.num)
        self.played: list[tuple[int, Played]] = []

    def play(self) -> Iterator[bool]:
        """Play all games; yields after every step of the envs: True while the first env plays games that count."""
        for seed in self._seeds:
            left, ended_here = -(-self._episodes // self.env.num), list[Played]()
            steps = play_episodes(
                self._policy, self.env, episodes=self._episodes, seed=seed, reward_clip=self._reward_clip
            )
            for ended in steps:
                ended_here += ended
                yield left > 0
                left -= sum(game.env_index == 0 for game in ended)
            self.played += [(seed, game) for game in sorted(ended_here, key=lambda game: game.env_index)]


def summarize(totals: Sequence[float]) -> dict[str, Any]:
    """Return mean, median, std, and a 95% confidence interval of the mean of returns."""
    low, high = _interval(np.array(totals))
    return {
        "mean": statistics.fmean(totals),
        "median": statistics.median(totals),
        "std": statistics.stdev(totals) if len(totals) > 1 else 0.0,
        "ci95": [low, high],
        "episodes": len(totals),
    }


def _interval(totals: np.ndarray[Any, np.dtype[Any]]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the mean, with a fixed seed."""
    draws = np.random.default_rng(0).choice(totals, size=(2000, len(totals)))
    low, high = np.quantile(draws.mean(axis=1), [0.025, 0.975])
    return float(low), float(high)
