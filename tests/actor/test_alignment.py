"""Observations, actions, rewards, carries, and masks stay aligned from env to sample, shown with the counting env."""

from itertools import pairwise

import numpy as np
import pytest

from starling.config.load import load
from starling.envs.toy import counting_length, counting_reward, counting_terminates
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

NUM_ENVS = 3


def run(preset, steps, *overrides, truncate_at=()):
    """An inline run on the counting env, and copies of all fragments that were inserted."""
    settings = [f"env={{id: toy/counting, num: {NUM_ENVS}}}", "net.torso.hidden=[8]", *overrides]
    runtime = build_runtime(RunPlan.from_config(load(preset, settings)))
    fragments, insert = [], runtime.store.mixture.insert

    def copy_and_insert(fragment):
        fragments.append(copy_of(fragment))
        return insert(fragment)

    runtime.store.mixture.insert = copy_and_insert
    for count, _ in enumerate(runtime.run(), start=1):
        if count in truncate_at:
            runtime.loops[0].cut()
        if runtime.env_steps >= steps:
            return runtime, fragments
    raise AssertionError


def copy_of(fragment):
    from starling import tree

    return tree.map(lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, fragment)


def check_steps(trajectory):
    """Check that every valid step is what the counting env does for that observation and action."""
    valid_steps = 0
    for b in range(trajectory.batch_size):
        for t in range(trajectory.length):
            if not trajectory.valid[t, b]:
                assert trajectory.rewards["extrinsic"][t, b] == 0
                assert not trajectory.terminated[t, b]
                assert not trajectory.truncated[t, b]
                continue
            valid_steps += 1
            tag, episode, step = (int(x) for x in trajectory.obs[t, b])
            action = int(trajectory.action[t, b])
            assert trajectory.rewards["extrinsic"][t, b] == counting_reward(tag, episode, step, action)
            np.testing.assert_array_equal(trajectory.obs[t + 1, b], [tag, episode, step + 1])
            assert trajectory.first[t, b] == (step == 0)
            last = step + 1 == counting_length(tag, episode)
            assert trajectory.terminated[t, b] == (last and counting_terminates(tag, episode))
            assert trajectory.truncated[t, b] == (last and not counting_terminates(tag, episode))
    return valid_steps


@pytest.mark.parametrize("fragment", [1, 4, 7])
def test_fragments_are_aligned_and_contain_every_step(fragment):
    runtime, fragments = run("dqn-cartpole", 200, f"algo.fragment={fragment}", truncate_at=(11, 12, 30))
    assert sum(check_steps(f.trajectory) for f in fragments) == runtime.store.env_steps
    assert runtime.env_steps - runtime.store.env_steps <= NUM_ENVS * fragment
    for before, after in pairwise(fragments):
        np.testing.assert_array_equal(before.trajectory.obs[-1], after.trajectory.obs[0])
        np.testing.assert_array_equal(before.trajectory.first[-1], after.trajectory.first[0])
        assert after.sequence == before.sequence + 1


def test_reset_follows_every_episode_end_and_every_forced_cut():
    _, fragments = run("dqn-cartpole", 200, "algo.fragment=50", truncate_at=(11, 30))
    trajectory = fragments[0].trajectory
    ended = trajectory.terminated | trajectory.truncated
    np.testing.assert_array_equal(trajectory.first[1:], ~trajectory.valid)
    assert (~trajectory.valid[1:])[ended[:-1]].all()
    cut = [t for t in range(1, 50) if not trajectory.valid[t].any()]
    assert set(cut) >= {11, 30}


@pytest.mark.parametrize("n_step", [1, 3])
def test_sampled_sequences_are_aligned_and_stay_in_one_episode(n_step):
    overrides = [f"algo.n_step={n_step}", "algo.learning_starts=50", "algo.capacity=300", "algo.batch=64"]
    overrides.append("algo.fragment=50")
    runtime, _ = run("dqn-cartpole", 900, *overrides, truncate_at=(40, 200))
    runtime.store.check_valid()
    for _ in range(20):
        steps = runtime.store.mixture.sample(64).trajectory
        assert check_steps(steps) > 0
        assert steps.valid[0].all()
        assert (steps.obs[:, :, 1] == steps.obs[0, :, 1]).all()  # all steps are of one episode
        count = steps.valid.sum(0)
        last = steps.obs[-1, np.arange(64), 2]
        np.testing.assert_array_equal(last, steps.obs[0, :, 2] + count)  # padding repeats the final observation


def test_carries_hold_the_state_action_and_reward_before_each_observation():
    overrides = ["net.core.kind=lstm", "net.core.size=4", "net.inputs=[action, reward]", "algo.rollout=8"]
    _, fragments = run("ppo-cartpole", 400, *overrides, "net.shared=true")
    assert len(fragments) > 10
    for before, after in pairwise(fragments):
        steps, carry = before.trajectory, after.trajectory.carry
        np.testing.assert_array_equal(carry["action"], steps.action[-1])
        np.testing.assert_array_equal(carry["rewards"]["extrinsic"], steps.rewards["extrinsic"][-1])
        assert (carry["state"]["h"] != 0).any()


def test_recorded_rewards_are_clipped_and_scores_are_not():
    runtime, fragments = run("dqn-cartpole", 200, "env.reward_clip=1.0", "algo.fragment=10")
    recorded = np.concatenate([f.trajectory.rewards["extrinsic"].ravel() for f in fragments])
    assert recorded.max() == 1
    assert max(episode.total for episode in runtime.episodes()) > 7


def test_only_episodes_that_ended_by_themselves_are_scored():
    runtime, fragments = run("dqn-cartpole", 400, "algo.fragment=100", truncate_at=(25,))
    steps = fragments[0].trajectory
    totals, lengths, episodes = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, int), []
    for t in range(steps.length):
        totals += steps.rewards["extrinsic"][t]
        lengths += steps.valid[t]
        for b in range(NUM_ENVS):
            if steps.terminated[t, b] or steps.truncated[t, b]:
                episodes.append((b, totals[b], lengths[b]))
            if steps.first[t + 1, b]:
                totals[b] = lengths[b] = 0
    scored = [(e.env_index, e.total, e.length) for e in runtime.episodes()]
    assert scored[: len(episodes)] == episodes


def test_on_policy_fragments_use_only_the_newest_weights():
    _, fragments = run("ppo-cartpole", 400, "algo.rollout=8")
    assert [f.trajectory.policy_version.tolist() for f in fragments] == [[i] * NUM_ENVS for i in range(len(fragments))]


def test_staggered_envs_are_aligned_and_cut_episodes_are_not_scored():
    runtime, fragments = run("dqn-cartpole", 300, "env.stagger=4", "algo.fragment=100", "seed=2")
    steps = fragments[0].trajectory
    np.testing.assert_array_equal(steps.first[1:], ~steps.valid)
    begins = [np.flatnonzero(steps.first[1:5, b]) for b in range(NUM_ENVS)]
    cut = [b for b in range(NUM_ENVS) if len(begins[b]) and begins[b][0] < counting_length(*tag_and_episode(steps, b))]
    episodes = runtime.episodes()
    assert cut
    for b in cut:
        end = int(begins[b][0])
        assert steps.truncated[end - 1, b]
        lengths = [episode.length for episode in episodes if episode.env_index == b]
        tag, first = tag_and_episode(steps, b)
        assert lengths[0] == counting_length(tag, first + 1)


def tag_and_episode(steps, b):
    return int(steps.obs[0, b, 0]), int(steps.obs[0, b, 1])
