"""The episodic reward compared with a slow version that reads like the paper, and with cases computed by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from support.intrinsic_inputs import intrinsic_input

from starling.config.curiosity import EpisodicConfig
from starling.errors import UserError
from starling.intrinsic.episodic import Episodic
from starling.types import EnvSpec


class SlowEpisodicReward:
    """The reward of one env, with a list of the embeddings in its episode (2002.06038, algorithm 1)."""

    def __init__(self, config):
        self.config, self.seen, self.distances = config, [], []

    def begin(self):
        self.seen = []

    def reward(self, query):
        config, reward = self.config, 0.0
        if len(self.seen) >= config.neighbours:
            kept = self.seen[-config.capacity :]
            near = sorted(float(((query - other) ** 2).sum()) for other in kept)[: config.neighbours]
            self.distances.append(np.mean(near))
            mean_distance = max(np.mean(self.distances), 1e-8)
            similar = 0.0
            for distance in near:
                relative = max(distance / mean_distance - config.cluster, 0.0)
                similar += config.kernel / (relative + config.kernel)
            similarity = math.sqrt(similar) + config.constant
            reward = 1 / similarity if similarity <= config.most else 0.0
        self.seen.append(query)
        return reward


def identity_module():
    """A module whose embedding is the observation itself."""
    return SimpleNamespace(encode=lambda obs: obs)


@pytest.mark.parametrize(("capacity", "most"), [(50, 8.0), (7, 8.0), (50, 1.2)])
def test_episodic_reward_matches_the_slow_reference(capacity, most):
    config = EpisodicConfig(features=3, capacity=capacity, neighbours=4, kernel=0.01, most=most)
    rng = np.random.default_rng(0)
    episodic, slow, rewards = Episodic(config), [SlowEpisodicReward(config) for _ in range(3)], []
    memory = episodic.initial_state(3)
    for t in range(60):
        obs = rng.integers(0, 3, (3, 3)).astype(np.float32)  # values repeat, so many distances are 0
        first = np.array([t % 25 == 0, t % 9 == 0, t == 0])
        for i in np.flatnonzero(first):
            slow[i].begin()
        expected = [env.reward(query) for env, query in zip(slow, obs, strict=True)]
        rewards_now = episodic.reward(identity_module(), intrinsic_input(obs, first), memory)
        np.testing.assert_allclose(rewards_now.numpy(), expected, rtol=1e-4, atol=1e-6)
        rewards += expected
    assert len({round(reward, 6) for reward in rewards}) > 20
    assert min(rewards) == 0
    assert max(rewards) > 0


def test_familiar_observation_has_a_small_reward_and_a_new_one_a_large_reward():
    """Ten equal entries: similarity sqrt(10) + 0.001. For one far from them all distances equal the mean distance."""
    config = EpisodicConfig(features=1)
    episodic, memory = Episodic(config), None
    memory = episodic.initial_state(1)
    for t in range(10):
        assert episodic.reward(identity_module(), intrinsic_input([[0.0]], [t == 0]), memory).item() == 0
    assert episodic.reward(identity_module(), intrinsic_input([[0.0]], [False]), memory).item() == pytest.approx(
        1 / (math.sqrt(10) + 1e-3)
    )
    memory["distance"].zero_(), memory["queries"].zero_()  # so that the next query is the first in the mean
    new = episodic.reward(identity_module(), intrinsic_input([[5.0]], [False]), memory).item()
    assert new == pytest.approx(1 / (math.sqrt(10 * 1e-4 / (1 - 0.008 + 1e-4)) + 1e-3), rel=1e-4)


def test_query_precedes_insertion_and_a_new_episode_empties_the_memory():
    config = EpisodicConfig(features=1, neighbours=1, kernel=0.1)
    episodic = Episodic(config)
    memory = episodic.initial_state(2)
    episodic.reward(identity_module(), intrinsic_input([[1.0], [1.0]], [True, True]), memory)
    novel = episodic.reward(identity_module(), intrinsic_input([[3.0], [3.0]], [False, True]), memory)
    assert novel[0] > 0  # compared with 1, not with itself
    assert novel[1] == 0  # its episode has just begun
    assert memory["count"].tolist() == [2, 1]


def test_episodic_reward_needs_discrete_actions():
    env = EnvSpec("x", spaces.Box(0, 1, (3,)), spaces.Box(-1, 1, (2,)))
    with pytest.raises(UserError, match=r"curiosity episodic needs a Discrete action space.*use kind: rnd"):
        Episodic(EpisodicConfig()).build(env)
