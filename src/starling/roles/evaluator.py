"""Plays whole episodes with a policy that does not explore."""

from __future__ import annotations

import numpy as np

from starling.envs.vector import VectorEnv
from starling.roles import noise
from starling.roles.policy import Policy
from starling.roles.recorder import learning_rewards


def play_episodes(
    policy: Policy, env: VectorEnv, *, episodes: int, seed: int, reward_clip: float | None = None
) -> list[float]:
    """Raw returns of `episodes` episodes.

    Every row plays its own share: taking whichever end first would favour short episodes. `reward_clip` only concerns
    what a network that takes rewards as input is shown.
    """
    rows = np.arange(env.num)
    share = np.full(env.num, episodes // env.num) + (rows < episodes % env.num)
    group = policy.group(rows, seed)
    step = env.reset(noise.seeds(seed, rows, 0))
    running = np.zeros(env.num)
    totals: list[float] = []
    while len(totals) < episodes:
        group.seen = step
        group.reward(learning_rewards(step, reward_clip))
        (output,) = policy.infer([group])
        group.settle(output)
        step = env.step(output.action)
        running += step.reward
        for i in np.flatnonzero(env.game_over):
            if share[i] > 0:
                totals.append(float(running[i]))
                share[i] -= 1
            running[i] = 0
    return totals
