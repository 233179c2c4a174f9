"""TD3 of examples/td3.py: its losses, its gradients, and a run that learns. docs/own-algorithm.md shows these tests."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from td3 import TD3, TD3Config

import starling


def make_td3(**settings):
    """TD3 with these settings, a model, and another model as target network."""
    td3 = TD3(TD3Config(name="td3:TD3", **settings), starling.NetConfig())
    box = spaces.Box(-1, 1, (2,), np.float32)
    env = starling.EnvSpec("test", observation=box, action=box)
    return td3, td3.build(env, td3.streams()), td3.build(env, td3.streams())


def one_transition(reward, terminated=False, truncated=False):
    """A batch with one transition: T = 1, B = 1."""
    steps = starling.Trajectory(
        obs=torch.rand(2, 1, 2),
        first=torch.zeros(2, 1, dtype=torch.bool),
        action=torch.rand(1, 1, 2),
        rewards={"extrinsic": torch.tensor([[reward]])},
        terminated=torch.tensor([[terminated]]),
        truncated=torch.tensor([[truncated]]),
        valid=torch.tensor([[True]]),
        extras={},
        carry={},
        policy_version=torch.zeros(1, dtype=torch.int64),
    )
    source = torch.zeros(1, dtype=torch.int64)
    return starling.Batch(steps, torch.ones(1), source, starling.Progress(), torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("end", "bootstrap"), [({}, 0.9), ({"terminated": True}, 0.0), ({"truncated": True}, 0.9)])
def test_critics_regress_on_the_target(end, bootstrap):
    td3, model, target_net = make_td3(discount=0.9, smoothing=0.0)
    batch = one_transition(reward=2.0, **end)
    (s, next_s), first, a = batch.trajectory.obs, batch.trajectory.first[0], batch.trajectory.action[0]
    target = 2.0 + bootstrap * target_net.q(next_s, target_net.policy(next_s, first)).min()
    loss = td3.loss(model, target_net, batch)
    torch.testing.assert_close(loss.losses["critic"], (target - model.q(s, a)).square().sum())


def test_gradients_of_the_critics_reach_neither_the_policy_nor_the_target_network():
    td3, model, target_net = make_td3()
    loss = td3.loss(model, target_net, one_transition(reward=2.0))
    others = [*model.actor.parameters(), *target_net.parameters()]
    assert set(torch.autograd.grad(loss.losses["critic"], others, allow_unused=True)) == {None}


def test_noise_on_target_actions_is_clipped():
    td3, model, target_net = make_td3(smoothing=100.0, smoothing_clip=0.0)
    batch = one_transition(reward=2.0)
    exact, _, _ = make_td3(smoothing=0.0)
    for name, loss in td3.loss(model, target_net, batch).losses.items():
        torch.testing.assert_close(loss, exact.loss(model, target_net, batch).losses[name])


@pytest.mark.slow
def test_td3_learns(tmp_path):
    """16 steps in which the observation is the best action: 5.3 by chance, 16 at best."""
    settings = {
        "algo": {"name": "td3:TD3", "discount": 0.5, "batch": 64, "learning_starts": 500},
        "env": {"id": "toy/match", "num": 1},
        "net": {"torso": {"hidden": [32, 32]}},
        "stop": {"env_steps": 6000, "return": 13},
    }
    result = starling.train(settings, ["algo.optimizer.args.lr=0.003"], runs=tmp_path)
    assert result.score >= 13
