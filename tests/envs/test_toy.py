"""Toy envs have the returns they document, shown with optimal policies."""

import numpy as np
import pytest

from starling.config.env import EnvConfig
from starling.envs.registry import make_env
from starling.envs.toy import Counting, Identity, Memory, Mixed, Truncation
from starling.envs.toy import counting_length as length_of
from starling.envs.toy import counting_reward as reward_of
from starling.envs.toy import counting_terminates as terminates
from starling.envs.toy_explore import DeepSea, Rooms


def returns(env, policy, episodes, seed=0):
    """The return of each episode with `policy(obs, t)`."""
    totals = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed if episode == 0 else None)
        total, ended, t = 0.0, False, 0
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy(obs, t))
            total, ended, t = total + reward, terminated or truncated, t + 1
        totals.append(total)
    return np.array(totals)


def test_identity_returns():
    env = Identity(n=5, length=10)
    assert (returns(env, lambda obs, _: int(obs.argmax()), 20) == 10).all()
    assert abs(returns(env, lambda *_: 2, 300).mean() - 10 / 5) < 0.3


class Recall:
    def __call__(self, obs, t):
        if t == 0:
            self.cue = int(obs[1])
        return self.cue


def test_memory_returns_1_with_the_cue_and_0_on_average_without():
    env = Memory(delay=3)
    assert (returns(env, Recall(), 50) == 1).all()
    without_cue = returns(env, lambda obs, _: int(obs[2]), 400)
    assert abs(without_cue.mean()) < 0.15
    assert set(without_cue) == {-1.0, 1.0}


def test_memory_shows_the_cue_once():
    env = Memory(delay=3)
    obs = [env.reset(seed=0)[0]]
    for _ in range(4):
        obs.append(env.step(0)[0])
    cue, blank, go = obs[0], obs[1:4], obs[4]
    assert cue.tolist() in ([1, 0, 0], [0, 1, 0])
    assert not np.any(blank)
    assert go.tolist() == [0, 0, 1]


@pytest.mark.parametrize("ends", ["truncated", "terminated"])
def test_truncation_has_the_documented_values(ends):
    env, g, limit = Truncation(ends, limit=8), 0.9, 8
    lengths = returns(env, lambda *_: 0, 4000)
    value = np.mean((1 - g**lengths) / (1 - g))  # the return up to the end
    if ends == "truncated":
        value += np.mean(g**lengths) / (1 - g)  # and the return that would have followed
    expected = 1 / (1 - g) if ends == "truncated" else 1 / (1 - g * (1 - 1 / limit))
    assert abs(value - expected) < 0.15
    env.reset(seed=0)
    kinds = [env.step(0)[2:4] for _ in range(50)]
    assert (True, True) not in kinds
    assert any(kind[ends == "truncated"] for kind in kinds)


def test_counting_steps_follow_their_documented_rules():
    env = make_env(EnvConfig(id="toy/counting"), 3)
    seeds = np.array([4, 1029, 7])
    before = env.reset(seeds).obs.copy()
    assert before[:, 0].tolist() == [4, 5, 7]
    rng = np.random.default_rng(0)
    ends = set()
    for _ in range(60):
        action = rng.integers(4, size=3)
        step = env.step(action)
        for i in range(3):
            tag, episode, t = (int(x) for x in before[i])
            if step.first[i]:
                assert step.obs[i].tolist() == [tag, episode + 1, 0]
                continue
            last = t + 1 == length_of(tag, episode)
            assert step.obs[i].tolist() == [tag, episode, t + 1]
            assert step.reward[i] == reward_of(tag, episode, t, int(action[i]))
            assert step.terminated[i] == (last and terminates(tag, episode))
            assert step.truncated[i] == (last and not terminates(tag, episode))
            ends.add((bool(step.terminated[i]), bool(step.truncated[i])))
        before = step.obs.copy()
    assert ends == {(False, False), (True, False), (False, True)}


def test_counting_rewards_differ_by_action_and_step():
    assert len({reward_of(3, 2, t, a) for t in range(3) for a in range(4)}) == 12
    assert {length_of(0, e) for e in range(7)} == set(range(1, 8))
    assert Counting().reset(seed=5)[0].tolist() == [5, 0, 0]


POLICY_BY_LEAF = {
    "vector": lambda obs, _: int(obs["vector"].argmax()),
    "image": lambda obs, _: int(2 * (obs["image"][0, 4:].any()) + obs["image"][0, :, 4:].any()),
    "index": lambda obs, _: int(obs["index"]),
}


@pytest.mark.parametrize("answer", POLICY_BY_LEAF)
def test_only_the_configured_leaf_has_the_answer(answer):
    for leaf, policy in POLICY_BY_LEAF.items():
        mean = returns(Mixed(answer), policy, 100).mean()
        assert (mean == 8) if leaf == answer else (abs(mean - 2) < 0.5)


@pytest.mark.parametrize("size", [2, 5])
def test_deep_sea_returns(size):
    env = DeepSea(size, mapping_seed=3)
    right = env._right.ravel()  # by cell
    best = returns(env, lambda obs, _: int(right[obs.argmax()]), 3)
    np.testing.assert_allclose(best, 0.99)
    left = returns(env, lambda obs, _: int(1 - right[obs.argmax()]), 1)
    assert left == [0.0]
    # after one move to the left the treasure is out of reach
    one_mistake = returns(env, lambda obs, t: int(right[obs.argmax()]) if t else int(1 - right[0]), 1)
    np.testing.assert_allclose(one_mistake, -0.01 * (size - 1) / size)


def test_deep_sea_has_the_action_mapping_of_bsuite():
    """The right action differs from cell to cell; with seed 42 and size 10 the diagonal is bsuite's."""
    assert DeepSea(10, mapping_seed=42)._right.diagonal().tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 1, 0]
    mappings = [DeepSea(8, mapping_seed=seed)._right for seed in range(4)]
    assert all(0.2 < mapping.mean() < 0.8 and len({*map(tuple, mapping)}) > 4 for mapping in mappings)
    assert len({mapping.tobytes() for mapping in mappings}) == 4


def walk(env, moves):
    env.reset(seed=0)
    return [env.step(move) for move in moves]


def test_tv_shows_noise_only_in_its_room():
    env = Rooms(rooms=2, size=3, tv=4)
    first, _ = env.reset(seed=0)
    same, _ = Rooms(rooms=2, size=3, tv=4).reset(seed=0)
    np.testing.assert_array_equal(first, same)
    stayed = env.step(0)[0]
    assert (stayed[-4:] != first[-4:]).all()
    assert (stayed[-4:] >= 0).all()
    assert (stayed[-4:] <= 1).all()
    env.reset(seed=0)
    away = [env.step(1)[0] for _ in range(3)][-1]
    assert not away[-4:].any()


def test_rooms_can_be_crossed_and_revisited():
    env = Rooms(rooms=2, size=3)
    across = [1] * 4 + [2] * 4  # right through one door, down through another
    steps = walk(env, across)
    assert [s[1] for s in steps] == [0] * 7 + [1]
    assert [s[2] for s in steps] == [False] * 7 + [True]
    assert steps[-1][4] == {"rooms": 3}
    back = walk(env, [1] * 4 + [3] * 4)
    assert back[-1][0].argmax() == env.reset()[0].argmax()
    assert back[-1][4] == {"rooms": 2}


def test_walls_block_moves_and_time_runs_out():
    env = Rooms(rooms=2, size=3, limit=5)
    steps = walk(env, [0] * 5)
    assert [int(s[0].argmax()) for s in steps] == [9 + 2] * 5
    assert [s[3] for s in steps] == [False] * 4 + [True]


def test_random_walks_seldom_reach_the_goal():
    env = Rooms()
    rng = np.random.default_rng(0)
    assert returns(env, lambda *_: int(rng.integers(4)), 40).mean() < 0.2
