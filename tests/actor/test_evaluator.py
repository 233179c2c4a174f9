"""Evaluations report mean and std of raw returns over the requested number of episodes.

With several policies, the evaluator scores the one that is best in separate trials.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from starling.actor import evaluator as evaluator_module
from starling.actor.core import Policy
from starling.actor.evaluator import play_episodes
from starling.config.load import load
from starling.envs.registry import make_env
from starling.launch.builders import build_evaluator
from starling.launch.plan import RunPlan, build_model


def test_evaluation_reports_mean_and_std_of_its_returns():
    plan = RunPlan.from_config(load("ppo-cartpole", ["net.torso.hidden=[8]"]))
    evaluator = build_evaluator(plan, build_model(plan), plan.config.eval.model_copy(update={"episodes": 12}), seed=3)
    try:
        played = [game for ended in evaluator.play() for game in ended]
        *unfinished, done = evaluator.evaluate({})
    finally:
        evaluator.env.close()
    returns, row = [game.total for game in played], done.row
    assert done.state == {}
    assert len(returns) == 12
    assert set(unfinished) == {None}
    assert np.std(returns) > 1.5  # clearly different from the variance
    assert row["eval/return"] == pytest.approx(np.mean(returns))
    assert row["eval/return_std"] == pytest.approx(np.std(returns))
    assert row["eval/length"] == pytest.approx(np.mean([game.length for game in played]))


def test_endless_game_is_cut_off_and_its_return_so_far_counts(monkeypatch, caplog):
    monkeypatch.setattr(evaluator_module, "LONGEST", 50)
    plan = RunPlan.from_config(load("ppo-cartpole", ["env.id=CliffWalking-v1", "net.torso.hidden=[8]"]))
    evaluator = build_evaluator(plan, build_model(plan), plan.config.eval.model_copy(update={"episodes": 3}), seed=3)
    try:
        played = [game for ended in evaluator.play() for game in ended]
    finally:
        evaluator.env.close()
    assert [game.length for game in played] == [50] * 3
    assert all(game.total <= -50 for game in played)  # every step costs 1, a fall costs 100
    assert len(caplog.messages) == 1
    assert "'CliffWalking-v1' had not ended after 50 steps" in caplog.messages[0]


NGU = [
    *["env={id: toy/identity, args: {length: 4}}", "env.num=3", "net.torso.hidden=[8]", "net.core.size=4"],
    *["algo.policies=4", "algo.unroll=4", "algo.period=2", "algo.fragment=4", "algo.batch=8", "algo.capacity=20000"],
    *["algo.lifelong={kind: rnd, torso: {hidden: [8]}}", "algo.meta={window: 12, epsilon: 0.5, trials: 6}"],
    "algo.episodic={kind: episodic, features: 4, capacity: 8, neighbours: 2, hidden: 8, torso: {hidden: [8]}}",
]


@pytest.fixture
def policies(monkeypatch):
    """Four policies of which only `best_policy[0]` answers right; `began` lists the policies at episode starts."""
    plan = RunPlan.from_config(load("ngu-deepsea", NGU))
    act, best_policy, began = plan.algorithm.act, [2], []

    def act_with_one_good_policy(model, inputs):
        answer = inputs.obs.argmax(-1)
        is_best = inputs.carry["arm"] == best_policy[0]
        began.extend(inputs.carry["arm"][inputs.first].tolist())
        return replace(act(model, inputs), action=torch.where(is_best, answer, (answer + 1) % 4))

    monkeypatch.setattr(plan.algorithm, "act", act_with_one_good_policy)
    return plan, best_policy, began


def evaluations(plan, states=({},), number=1, episodes=5):
    """`number` evaluations, each of which continues from the state of the one before."""
    settings = plan.config.eval.model_copy(update={"episodes": episodes})
    evaluator = build_evaluator(plan, build_model(plan), settings, seed=3)
    done = [*states]
    try:
        for _ in range(number):
            *_, last = evaluator.evaluate(done[-1] if isinstance(done[-1], dict) else done[-1].state)
            done.append(last)
    finally:
        evaluator.env.close()
    return done[len(states) :]


def test_each_policy_is_tried_and_the_best_is_scored_in_separate_episodes(policies):
    plan, _, began = policies
    (done,) = evaluations(plan)
    assert Counter(done.state["arms"]).keys() == {0, 1, 2, 3}
    assert done.state["returns"] == [4.0 if arm == 2 else 0.0 for arm in done.state["arms"]]
    assert done.state["played"] == 6
    assert done.row["eval/arm"] == 2
    assert (done.row["eval/return"], done.row["eval/return_std"]) == (4.0, 0.0)
    assert (done.row["eval/arm/2/return"], done.row["eval/arm/0/return"]) == (4.0, 0.0)
    assert began[-5:] == [2] * 5  # all episodes of the score


def test_evaluator_continues_its_trials_and_follows_a_changed_best_policy(policies):
    plan, best_policy, _ = policies
    first, second = evaluations(plan, number=2)
    assert second.state["played"] == 12
    assert second.state["arms"][:6] == first.state["arms"]
    best_policy[0] = 1
    *_, last = evaluations(plan, states=[second], number=6)
    assert last.row["eval/arm"] == 1
    assert last.row["eval/return"] == 4.0
    assert len(last.state["arms"]) == 12  # the length of the window
    (again,) = evaluations(plan, states=[second.state])
    assert again == evaluations(plan, states=[second.state])[0]


def test_trials_use_new_env_seeds_and_scores_always_the_same(policies, monkeypatch):
    plan, _, _ = policies
    env_seeds, seeds = [], evaluator_module.noise.seeds
    monkeypatch.setattr(
        evaluator_module.noise, "seeds", lambda *given: env_seeds.append(seeds(*given)) or env_seeds[-1]
    )
    evaluations(plan, number=3)
    trials, scores = [tuple(envs) for envs in env_seeds[::2]], [tuple(envs) for envs in env_seeds[1::2]]
    assert len(set(trials)) == 3
    assert len(set(scores)) == 1
    assert not {*trials} & {*scores}


def test_dropped_evaluation_does_not_change_the_evaluator(policies):
    plan, _, _ = policies
    settings = plan.config.eval.model_copy(update={"episodes": 5})
    evaluator = build_evaluator(plan, build_model(plan), settings, seed=3)
    try:
        dropped = evaluator.evaluate({})
        for _ in range(9):
            assert next(dropped) is None
        *_, done = evaluator.evaluate({})
    finally:
        evaluator.env.close()
    assert done == evaluations(plan)[0]


class TwoLives:
    """An env whose games have two episodes each, as if a lost life ended the episode."""

    def __init__(self, env):
        self._env, self.num, self.dropped, self.spec = env, env.num, env.dropped, env.spec
        self.episode_infos, self._ended = env.episode_infos, np.zeros(env.num, np.int64)

    def reset(self, seeds):
        return self._env.reset(seeds)

    def step(self, actions):
        step = self._env.step(actions)
        self._ended += self._env.game_over
        self.game_over = self._env.game_over & (self._ended % 2 == 0)
        return step


def test_policy_is_kept_for_a_whole_game(policies):
    plan, _, began = policies
    env = make_env(plan.config.env, 1)
    policy, arms = Policy(plan.algorithm, build_model(plan), num_envs=1, explore=False), iter([3, 2, 0])
    played = play_episodes(
        policy, TwoLives(env), episodes=3, seed=0, reward_clip=None, choose=lambda unfinished: next(arms)
    )
    games = [game for ended in played for game in ended]
    env.close()
    assert [(game.arm, game.total, game.length) for game in games] == [(3, 0.0, 8), (2, 8.0, 8), (0, 0.0, 8)]
    assert began == [3, 3, 2, 2, 0, 0]


def test_metric_that_no_episode_has_is_warned_about_once(caplog):
    settings = ["env.id=toy/identity", "env.args={length: 4}", "net.torso.hidden=[8]", "eval.metrics=[nosuch, text]"]
    plan = RunPlan.from_config(load("ppo-cartpole", settings))
    evaluator = build_evaluator(plan, build_model(plan), plan.config.eval.model_copy(update={"episodes": 3}), seed=3)
    try:
        for _ in range(2):
            *_, done = evaluator.evaluate({})
            assert set(done.row) == {"eval/return", "eval/return_std", "eval/length"}
    finally:
        evaluator.env.close()
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith(
        "eval.metrics: no episode of env 'toy/identity' ended with a number called 'nosuch' in its info"
    )
