"""PPO's loss and gradient compared with a slow reference, for every kind of action space, setting, and minibatch."""

import copy
from dataclasses import replace

import pytest
import torch
from support.policy_batches import ROWS, SPACES, env_spec, make_batch
from support.slow_losses import assert_losses_match, build, float64_net, in_float64, slow_ppo

from starling.algos.ppo.config import PPOConfig
from starling.algos.ppo.ppo import PPO
from starling.learner.minibatches import minibatches, steps_as_rows
from starling.types import Progress, StreamSpec

CLIP = 0.25
"""At half of the run, where every batch here comes from."""
SETTINGS = {
    "discount": 0.9,
    "gae_lambda": 0.8,
    "clip": {"start": 0.4, "end": 0.1, "fraction": 1.0},
    "value_coef": 0.7,
    "entropy_coef": 0.05,
    "minibatches": 1,
}


def stale(shape, random):
    """Log-probabilities of some other policy."""
    return {"log_prob": -3.0 * torch.rand(*shape, generator=random)}


def make(actions="discrete", core="none", **settings):
    """The algorithm, the model before the first update on a batch, the model after some updates, and the batch."""
    algorithm = PPO(PPOConfig(name="ppo", **{**SETTINGS, **settings}), float64_net(core))
    before = build(algorithm, env_spec(actions))
    batch = in_float64(make_batch(before, stale, actions))
    model = copy.deepcopy(before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return algorithm, before, model, replace(batch, progress=Progress(env_steps=50, fraction=0.5))


def stream(config):
    return [StreamSpec(discount=0.9, lambda_=config.gae_lambda)]


def prepare(algorithm, before, batch):
    with torch.no_grad():
        return algorithm.prepare(before, None, batch)


@pytest.mark.parametrize(("actions", "core"), [*((actions, "none") for actions in SPACES), ("discrete", "lstm")])
@pytest.mark.parametrize(
    "settings", [{}, {"value_clip": 0.3}, {"normalize_advantages": False}, {"max_lag": 2}, {"gae_lambda": 1.0}], ids=str
)
def test_loss_and_gradient_match_the_paper(actions, core, settings):
    algorithm, before, model, batch = make(actions, core, **settings)
    slow = slow_ppo(before, model, batch, algorithm.config, stream(algorithm.config), CLIP)
    ready = prepare(algorithm, before, batch)
    loss = assert_losses_match(algorithm, model, None, ready, {"ppo": slow})
    assert 0 < loss.metrics()["clipped"] < 1


@pytest.mark.parametrize("actions", SPACES)
def test_advantages_are_normalized_within_each_minibatch(actions):
    algorithm, before, model, batch = make(actions, minibatches=3)
    ready = steps_as_rows(prepare(algorithm, before, batch))
    for rows, part in minibatches(ready, 3, torch.randperm(ready.trajectory.batch_size)):
        cells = [divmod(row, ROWS) for row in rows.tolist()]
        slow = slow_ppo(before, model, batch, algorithm.config, stream(algorithm.config), CLIP, cells)
        assert_losses_match(algorithm, model, None, part, {"ppo": slow})


def test_some_values_on_this_batch_are_clipped_and_some_are_not():
    """Otherwise the comparison above could not detect that `value_clip` is ignored."""
    _, before, model, batch = make(value_clip=0.3)
    steps = batch.trajectory
    v, v_old = (net.unroll_trajectory(steps)[0]["extrinsic"][:-1][steps.valid] for net in (model, before))
    clipped = (v - v_old).abs() > 0.3
    assert clipped.any()
    assert not clipped.all()


def test_values_at_resets_are_ignored():
    algorithm, before, model, batch = make(max_lag=2)
    steps, reset = batch.trajectory, ~batch.trajectory.valid
    recorded = steps.extras["log_prob"].clone()
    recorded[:-1][reset] = -90.0
    with_garbage = replace(
        steps,
        rewards={"extrinsic": torch.where(reset, 1e6, steps.rewards["extrinsic"])},
        action=torch.where(reset, 0, steps.action),
        extras={"log_prob": recorded},
    )
    clean, spoiled = (prepare(algorithm, before, replace(batch, trajectory=t)) for t in (steps, with_garbage))
    expected = algorithm.loss(model, None, clean).losses
    assert_losses_match(algorithm, model, None, spoiled, expected)
