"""RND × episodic novelty as one reward: the product, its statistics, its loss, and its settings."""

from types import SimpleNamespace

import pytest
import torch
from support.policy_batches import env_spec
from support.transition_batches import make_transitions

from starling.config.curiosity import NoveltyConfig
from starling.config.load import load
from starling.errors import UserError
from starling.intrinsic.novelty import SPEED, Novelty
from starling.launch.fitting import _episodic_capacity

PARTS = {
    "lifelong": {"kind": "rnd", "torso": {"hidden": [8]}, "features": 3, "warm_up": 4},
    "within": {
        "kind": "episodic",
        "torso": {"hidden": [8]},
        "features": 4,
        "hidden": 5,
        "capacity": 9,
        "neighbours": 2,
    },
}


def make(**settings):
    torch.manual_seed(0)
    novelty = Novelty(NoveltyConfig(**PARTS, **settings))
    return novelty, novelty.build(env_spec())


def test_reward_is_episodic_novelty_times_the_clipped_lifelong_novelty():
    novelty, module = make(limit=3.0)
    novelty._within = SimpleNamespace(reward=lambda *_: torch.full((3,), 0.5))
    fixed = {"forward": lambda self, obs: torch.tensor([0.0, 3.5, 9.0]), "warm": torch.tensor(True)}
    module.lifelong = type("Fixed", (torch.nn.Module,), fixed)()
    seen = SimpleNamespace(obs=None)
    assert novelty.reward(module, seen, {}).tolist() == [0.5] * 3, "no error is unusual before any was seen"
    module.update(torch.tensor([1.0, 3.0]))  # mean 2, std 1
    assert novelty.reward(module, seen, {}).tolist() == pytest.approx([0.5, 0.5 * 2.5, 0.5 * 3], rel=1e-4)


def test_statistics_are_those_of_the_observations_after_valid_steps():
    novelty, module = make()
    steps = make_transitions("discrete", 3).trajectory
    novelty.prepare(module, steps)
    with torch.no_grad():
        errors = module.lifelong(steps.obs[1:][steps.valid])
    expected = SPEED * torch.stack([torch.ones_like(errors), errors, errors.square()]).mean(1)
    torch.testing.assert_close(module.error, expected)
    assert int(module.lifelong.moments[0].count) == int(steps.valid.sum())


def test_loss_trains_predictor_and_embedding_as_two_separate_rewards_would():
    novelty, module = make()
    batch = make_transitions("discrete", 3)
    next_obs = batch.trajectory.obs[1:]
    novelty.prepare(module, batch.trajectory)
    parts = {
        "lifelong": novelty._lifelong.loss(module.lifelong, batch, next_obs),
        "embedding": novelty._within.loss(module.embedding, batch, next_obs),
    }
    whole = novelty.loss(module, batch, next_obs)
    torch.testing.assert_close(whole, sum(parts.values()))
    for name, part in parts.items():
        parameters = [p for p in getattr(module, name).parameters() if p.requires_grad]
        separate = torch.autograd.grad(part, parameters, retain_graph=True)
        together = torch.autograd.grad(whole, parameters, retain_graph=True)
        assert all(torch.equal(one, other) for one, other in zip(separate, together, strict=True))
        assert any(gradient.any() for gradient in separate)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lifelong: {kind: rnd, weight: 2}", "lifelong.weight has no effect here: novelty is one reward; leave it out"),
        ("within: {kind: episodic, discount: 0.5}", "within.discount has no effect here"),
        ("within: {kind: episodic, optimizer: {args: {lr: 1}}}", "within.optimizer has no effect here"),
        ("limit: 0.5", "limit: must be at least 1"),
    ],
)
def test_settings_without_effect_are_one_clear_line(setting, message):
    with pytest.raises(UserError, match=message) as caught:
        load("dqn-cartpole", [f"curiosity=[{{kind: novelty, {setting}}}]"])
    assert len(str(caught.value).splitlines()) == 1


def test_advice_for_less_memory_names_the_episodic_memory():
    config = load("dqn-cartpole", ["curiosity=[{kind: novelty, within: {kind: episodic, capacity: 123456}}]"])
    assert _episodic_capacity(config) == ("curiosity.0.within.capacity", 123456)
