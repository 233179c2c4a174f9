"""Loss, gradient, and priorities of DQN and Ape-X compared with a slow reference, setting by setting."""

import pytest
import torch
from support.policy_batches import env_spec
from support.slow_losses import assert_losses_match, build, build_target, float64_net, in_float64, slow_dqn
from support.transition_batches import make_transitions

from starling.algos.apex.apex import ApeX
from starling.algos.apex.config import ApeXConfig
from starling.algos.dqn.config import DQNConfig
from starling.algos.dqn.dqn import DQN
from starling.algos.settings import PrioritizedConfig
from starling.nets.heads import DuelingHead
from starling.types import StreamSpec

DISCOUNT = 0.8


def make(kind=DQN, **settings):
    config = {DQN: DQNConfig, ApeX: ApeXConfig}[kind]
    settings = {"discount": DISCOUNT, "prioritized": PrioritizedConfig(), **settings}
    algorithm = kind(config(name=kind.__name__.lower(), **settings), float64_net())
    return algorithm, build(algorithm, env_spec()), build_target(algorithm, env_spec())


@pytest.mark.parametrize("kind", [DQN, ApeX])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    "settings", [{"n_step": 1, "huber": 2.5}, {"n_step": 3, "dueling": True}, {"n_step": 3, "huber": 0.8}], ids=str
)
def test_loss_gradient_and_priorities_match_the_papers(kind, double, settings):
    algorithm, model, target = make(kind, double=double, **settings)
    batch = in_float64(make_transitions("discrete", algorithm.config.n_step))
    slow, priorities = slow_dqn(model, target, batch, algorithm.config, [StreamSpec(discount=DISCOUNT)])
    assert priorities.min() < algorithm.config.huber < priorities.max()  # both regimes of the Huber loss
    loss = assert_losses_match(algorithm, model, target, batch, {"q": slow})
    torch.testing.assert_close(loss.priorities, priorities)


@pytest.mark.parametrize("settings", [{"double": True}, {"huber": 0.8}, {"discount": 0.7}], ids=str)
def test_loss_on_this_batch_depends_on_each_setting(settings):
    """Otherwise the comparison above could not detect that a setting is ignored."""
    batch = in_float64(make_transitions("discrete", 3))
    losses = []
    for changed in ({}, settings):
        algorithm, model, target = make(n_step=3, **changed)
        losses.append(algorithm.loss(model, target, batch).losses["q"].item())
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("dueling", [False, True])
def test_q_head_is_dueling_only_if_configured(dueling):
    _, model, _ = make(dueling=dueling)
    assert isinstance(model.heads["extrinsic"], DuelingHead) == dueling


def test_uniform_replay_has_no_priorities():
    algorithm, model, target = make(prioritized=None)
    assert algorithm.loss(model, target, in_float64(make_transitions("discrete", 1))).priorities is None
