"""The bandit compared with a slow version that reads like the paper, and with plain UCB where the best arm changes."""

import math

import numpy as np
import pytest
import torch

from starling.intrinsic.bandit import Bandit

ARMS, NUM_ENVS = 4, 3


def slow_choice(history, window, epsilon, bonus, noise):
    """2003.13350, section 3.2: the arm after the episodes of one env, a list of (arm, return)."""
    recent = history[-window:]
    plays = [[value for arm, value in recent if arm == k] for k in range(ARMS)]
    for k in range(ARMS):
        if not plays[k]:
            return k
    if noise[0] < epsilon:
        return int(noise[1] * ARMS)
    return int(np.argmax([np.mean(values) + bonus / math.sqrt(len(values)) for values in plays]))


def slow_tuned_choice(history, window):
    recent = history[-window:]
    values = [value for _, value in recent]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    plays = [[(v - low) / (high - low) if high > low else 0.0 for arm, v in recent if arm == k] for k in range(ARMS)]
    scores = []
    for values_of_arm in plays:
        if not values_of_arm:
            scores.append(math.inf)
            continue
        rate = math.log(len(recent)) / len(values_of_arm)
        scores.append(np.mean(values_of_arm) + math.sqrt(rate * min(0.25, np.var(values_of_arm) + math.sqrt(2 * rate))))
    return int(np.argmax(scores))


@pytest.mark.parametrize("kind", ["ucb", "ucb_tuned"])
@pytest.mark.parametrize("window", [7, 50])
def test_bandit_matches_the_slow_reference(kind, window):
    rng = np.random.default_rng(0)
    bandit = Bandit(ARMS, window, kind=kind, epsilon=0.3, bonus=0.7)
    state, histories = bandit.state(NUM_ENVS), [[] for _ in range(NUM_ENVS)]
    seen = set()
    for _ in range(60):
        env_index = np.flatnonzero(rng.random(NUM_ENVS) < 0.7)  # envs whose episode ends now
        noise = rng.random((len(env_index), 2)).astype(np.float32)
        arms = bandit.choose(state, torch.from_numpy(env_index), torch.from_numpy(noise)).numpy()
        for n, i in enumerate(env_index):
            slow = slow_choice(histories[i], window, 0.3, 0.7, noise[n])
            assert arms[n] == (slow if kind == "ucb" else slow_tuned_choice(histories[i], window))
            seen.add((int(i), int(arms[n])))
        returns = rng.normal(arms, 1.0).astype(np.float32)
        bandit.learn(state, torch.from_numpy(env_index), torch.from_numpy(arms), torch.from_numpy(returns))
        for i, arm, value in zip(env_index, arms, returns, strict=True):
            histories[i].append((int(arm), float(value)))
    assert len(seen) == NUM_ENVS * ARMS


def regret(window, num_envs=20, episodes=600):
    """The regret relative to the best fixed arm, where the best arm changes every 200 episodes."""
    rng = np.random.default_rng(0)
    bandit = Bandit(ARMS, window, epsilon=0.1, bonus=0.5)
    state, all_envs = bandit.state(num_envs), torch.arange(num_envs)
    total, fixed = 0.0, np.zeros(ARMS)
    for t in range(episodes):
        means = np.full(ARMS, 0.2)
        means[t // 200] = 1.0
        arms = bandit.choose(state, all_envs, torch.from_numpy(rng.random((num_envs, 2))).float())
        values = means[arms.numpy()] + 0.3 * rng.standard_normal(num_envs)
        bandit.learn(state, all_envs, arms, torch.from_numpy(values).float())
        total += means[arms.numpy()].mean()
        fixed += means
    return fixed.max() - total


@pytest.mark.slow
def test_sliding_window_follows_a_changing_best_arm_and_plain_ucb_does_not():
    sliding, plain = regret(window=40), regret(window=10_000)
    assert sliding < plain - 100
