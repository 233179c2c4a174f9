# mypy: disable-error-code="import-not-found, import-untyped, no-any-return"
"""Replay buffers of other libraries, if installed, with the same transitions and the same requests.

Each returns stacks of 4 frames at a step and 3 steps later, and gets new priorities if it has priorities.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from starling.tools.benchmark.random_play import SIZE, STACK, Recording
from starling.types import NDArray

Step = Callable[[], object]
ALPHA, BETA, GAMMA = 0.6, 0.4, 0.99


class Transition(NamedTuple):
    """One step of one env."""

    obs: NDArray  # [4, 84, 84]
    action: int
    reward: float
    next_obs: NDArray  # [4, 84, 84]
    terminated: bool
    truncated: bool


def transitions(recording: Recording, count: int) -> Iterator[Transition]:
    """Yield `count` valid steps, one env after the other, repeatedly; the last step of an env is truncated."""
    envs = itertools.cycle([recording.of_env(i) for i in range(recording.num_envs)])
    return itertools.islice(itertools.chain.from_iterable(map(_episodes, envs)), count)


def _episodes(single: Recording) -> Iterator[Transition]:
    """Yield the valid steps of a single env."""
    last = np.nonzero(np.diff(single.valid[:, 0], append=False))[0]
    for t in np.nonzero(single.valid[:, 0])[0].tolist():
        obs, next_obs = single.stacks(t, t + 2)[:, 0]
        over = bool(single.terminated[t, 0])
        yield Transition(
            obs, int(single.action[t, 0]), float(single.reward[t, 0]), next_obs, over, not over and t in last
        )


def tianshou(steps: Iterator[Transition], count: int, batch: int, n_step: int) -> Step:
    """Prioritized; frames are stored once. The observation n steps later is found as in its algorithms."""
    from tianshou.data import Batch, PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(
        count, alpha=ALPHA, beta=BETA, stack_num=STACK, ignore_obs_next=True, save_only_last_obs=True
    )
    for step in steps:
        buffer.add(
            Batch(
                obs=step.obs,
                act=step.action,
                rew=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
                obs_next=step.next_obs,
                info={},
            )
        )
    rng = np.random.default_rng(0)

    def draw() -> object:
        indices = later = buffer.sample_indices(batch)
        rewards = [buffer.rew[later]]
        for _ in range(n_step - 1):
            later = buffer.next(later)
            rewards.append(buffer.rew[later])
        found = buffer.get(indices, "obs"), buffer.get(buffer.next(later), "obs"), buffer.act[indices], rewards
        weights = buffer.get_weight(indices)
        buffer.update_weight(indices, rng.random(batch))
        return found, weights

    return draw


def cpprb(steps: Iterator[Transition], count: int, batch: int, n_step: int) -> Step:
    """Prioritized, with n-step sums at insertion; it stores frames once only if stacks are on the last axis."""
    from cpprb import PrioritizedReplayBuffer

    image = {"shape": (SIZE, SIZE, STACK), "dtype": np.uint8}
    buffer = PrioritizedReplayBuffer(
        count,
        {"obs": image, "act": {"dtype": np.int64}, "rew": {}, "next_obs": image, "done": {}},
        stack_compress=["obs", "next_obs"],
        Nstep={"size": n_step, "gamma": GAMMA, "rew": "rew", "next": "next_obs"},
        alpha=ALPHA,
    )
    for step in steps:
        obs, next_obs = np.moveaxis(step.obs, 0, -1), np.moveaxis(step.next_obs, 0, -1)
        buffer.add(obs=obs, act=step.action, rew=step.reward, next_obs=next_obs, done=step.terminated)
        if step.terminated or step.truncated:
            buffer.on_episode_end()
    rng = np.random.default_rng(0)

    def draw() -> object:
        found = buffer.sample(batch, beta=BETA)
        buffer.update_priorities(found["indexes"], rng.random(batch))
        return found

    return draw


def stable_baselines3(steps: Iterator[Transition], count: int, batch: int, n_step: int) -> Step:
    """Uniform: it has no priorities, so there is nothing to update."""
    from stable_baselines3.common.buffers import NStepReplayBuffer

    image = spaces.Box(0, 255, (STACK, SIZE, SIZE), np.uint8)
    buffer = NStepReplayBuffer(count, image, spaces.Discrete(18), device="cpu", n_steps=n_step, gamma=GAMMA)
    for step in steps:
        info = [{"TimeLimit.truncated": step.truncated}]
        done = np.array([step.terminated or step.truncated])
        buffer.add(step.obs[None], step.next_obs[None], np.array([step.action]), np.array([step.reward]), done, info)
    return lambda: buffer.sample(batch)


Peer = Callable[[Iterator[Transition], int, int, int], Step]
PEERS: dict[str, Peer] = {"tianshou": tianshou, "cpprb": cpprb, "stable_baselines3": stable_baselines3}


def installed() -> list[str]:
    return [name for name in PEERS if importlib.util.find_spec(name)]
