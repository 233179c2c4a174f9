"""Losses and gradients of algorithms with intrinsic reward streams, compared with slow references."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.policy_batches import env_spec
from support.policy_batches import make_batch as make_rollouts
from support.sequence_batches import SETTINGS as SEQUENCES
from support.sequence_batches import make_batch as make_sequences
from support.sequence_batches import slow_losses, slow_streams
from support.slow_losses import (
    TORSO,
    assert_losses_match,
    build,
    build_target,
    float64_net,
    in_float64,
    slow_dqn,
    slow_impact,
    slow_impala,
    slow_ppo,
    valid_cells,
)
from support.transition_batches import make_transitions

from starling.algos.curious import RETURN, Curious
from starling.algos.dqn.config import DQNConfig
from starling.algos.dqn.dqn import DQN
from starling.algos.impact.config import IMPACTConfig
from starling.algos.impact.impact import IMPACT
from starling.algos.impala.config import IMPALAConfig
from starling.algos.impala.impala import IMPALA
from starling.algos.ppo.config import PPOConfig
from starling.algos.ppo.ppo import PPO
from starling.algos.r2d2.config import R2D2Config
from starling.algos.r2d2.r2d2 import R2D2
from starling.config.curiosity import ICMConfig, RNDConfig
from starling.types import Progress, StreamSpec

CLIP, RATIOS = 0.15, {"clip_rho": 1.2, "clip_c": 0.9, "value_coef": 0.6, "entropy_coef": 0.04, "discount": 0.9}
RECORDED = ("rnd", "icm", "rnd" + RETURN, "icm" + RETURN)
OBS_CLIP, BETA = 1.5, 0.3


def curiosity(*, episodic, lambda_):
    """RND and ICM whose streams differ from each other and from the extrinsic one in every setting."""
    rnd = {"weight": 0.5, "discount": 0.7, "lambda_": lambda_, "episodic": episodic, "clip": OBS_CLIP, "features": 3}
    icm = {"weight": 0.3, "discount": 0.8, "lambda_": lambda_, "episodic": True, "beta": BETA, "hidden": 5}
    return [RNDConfig(torso=TORSO, **rnd), ICMConfig(torso=TORSO, **icm)]


def streams(*, episodic, lambda_, own_lambda=1.0):
    """The reward streams that these settings describe, with the extrinsic one first."""
    return [
        StreamSpec("extrinsic", discount=0.9, lambda_=own_lambda),
        StreamSpec("rnd", discount=0.7, lambda_=lambda_, episodic=episodic, weight=0.5),
        StreamSpec("icm", discount=0.8, lambda_=lambda_, episodic=True, weight=0.3),
    ]


def make(agent, batch_of, *, target=False, episodic=False, lambda_=1.0):
    """The algorithm, its model and target (or None), and a batch whose intrinsic returns have a std far from 1."""
    algorithm = Curious(agent, curiosity(episodic=episodic, lambda_=lambda_))
    model = build(algorithm, env_spec())
    batch = in_float64(batch_of(model))
    rewards = {name: r * (5.0 if name.endswith(RETURN) else 1.0) for name, r in batch.trajectory.rewards.items()}
    batch = replace(batch, trajectory=replace(batch.trajectory, rewards=rewards), progress=Progress(50, 0, 0.5))
    return algorithm, model, build_target(algorithm, env_spec()) if target else None, batch


def acted(shape, random):
    """Extras recorded while acting: the logits, and the log-probability of the action."""
    return {
        "behavior": {"logits": torch.randn(*shape, 3, generator=random)},
        "log_prob": -3.0 * torch.rand(*shape, generator=random),
    }


def rollouts(model):
    return make_rollouts(model, acted, intrinsic=RECORDED)


def slow_curiosity(model, steps):
    """The losses of RND (1810.12894, section 2.2) and ICM (1705.05363, eq. 2 to 7), means over valid steps."""
    cells, rnd, icm = valid_cells(steps), model.curiosity["rnd"], model.curiosity["icm"]
    after = np.array([steps.obs[t + 1, b].tolist() for t, b in cells])
    mean, std = torch.tensor(after.mean(0)), torch.tensor(after.std(0))
    errors, inverse, forward = [], [], []
    for t, b in cells:
        obs, next_obs, action = steps.obs[t, b : b + 1], steps.obs[t + 1, b : b + 1], steps.action[t, b]
        seen = ((next_obs - mean) / std).clamp(-OBS_CLIP, OBS_CLIP)
        errors.append(((rnd.predictor(seen) - rnd.random(seen).detach()) ** 2).mean())
        before, encoded_next = icm.inverse.encode(obs)[0], icm.inverse.encode(next_obs)[0]
        inverse.append(-icm.inverse.guess(torch.cat([before, encoded_next])).log_softmax(-1)[action])
        taken = torch.eye(3, dtype=torch.float64)[action]
        expected = icm.forward_model(torch.cat([before.detach(), taken]))
        forward.append(((expected - encoded_next.detach()) ** 2).sum() / 2)
    return {
        "rnd": sum(errors) / len(cells),
        "icm": ((1 - BETA) * sum(inverse) + BETA * sum(forward)) / len(cells),
    }


def scaled(batch):
    """The batch with intrinsic rewards divided by the std of the recorded returns."""
    steps, rewards = batch.trajectory, dict(batch.trajectory.rewards)
    for name in ("rnd", "icm"):
        std = steps.rewards[name + RETURN][steps.valid].std(correction=0)
        assert not 0.5 < std < 2.0
        rewards[name] = rewards[name] / std
    return replace(batch, trajectory=replace(steps, rewards=rewards))


def assert_matches_the_papers(algorithm, model, target, batch, name, slow, ready=None):
    if ready is None:
        ready = prepare(algorithm, model, target, batch)
    expected = {name: slow, **slow_curiosity(model, batch.trajectory)}
    assert_losses_match(algorithm, model, target, ready, expected, rtol=1e-5)  # statistics are used in float32


def prepare(algorithm, model, target, batch):
    with torch.no_grad():
        return algorithm.prepare(model, target, batch)


def test_dqn_with_intrinsic_streams_matches_the_reference():
    agent = DQN(DQNConfig(name="dqn", discount=0.9, n_step=3, double=True, huber=0.8), float64_net())
    algorithm, model, target, batch = make(
        agent, lambda _: make_transitions("discrete", 3, intrinsic=RECORDED), target=True, episodic=True
    )
    all_streams = streams(episodic=True, lambda_=1.0)
    slow, _ = slow_dqn(model.agent, target.agent, scaled(batch), agent.config, all_streams)
    assert_matches_the_papers(algorithm, model, target, batch, "q", slow)


def test_r2d2_with_intrinsic_streams_matches_the_reference():
    agent = R2D2(R2D2Config(name="r2d2", delta_q=False, **SEQUENCES), float64_net("lstm", inputs=["action"]))
    algorithm, model, target, batch = make(
        agent, lambda model: make_sequences(model, rewards=("extrinsic", *RECORDED)), target=True, episodic=True
    )
    all_streams = slow_streams(streams(episodic=True, lambda_=1.0), scaled(batch).trajectory)
    slow, _ = slow_losses(model.agent, target.agent, batch, agent.config, all_streams)
    assert_matches_the_papers(algorithm, model, target, batch, "q", sum(slow.values()))


@pytest.mark.parametrize("episodic", [True, False])
@pytest.mark.parametrize("max_lag", [0, 2])
def test_ppo_with_intrinsic_streams_matches_the_reference(episodic, max_lag):
    settings = {"gae_lambda": 0.8, "clip": CLIP, "minibatches": 1, "max_lag": max_lag, "value_clip": 0.3}
    agent = PPO(PPOConfig(name="ppo", discount=0.9, value_coef=0.6, entropy_coef=0.04, **settings), float64_net())
    algorithm, model, _, batch = make(agent, rollouts, episodic=episodic, lambda_=0.6)
    before = copy.deepcopy(model.agent)
    ready = prepare(algorithm, model, None, batch)
    with torch.no_grad():
        for parameter in model.agent.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    all_streams = streams(episodic=episodic, lambda_=0.6, own_lambda=0.8)
    slow = slow_ppo(before, model.agent, scaled(batch), agent.config, all_streams, CLIP)
    assert_matches_the_papers(algorithm, model, None, batch, "ppo", slow, ready)


@pytest.mark.parametrize("episodic", [True, False])
def test_impala_with_intrinsic_streams_matches_the_reference(episodic):
    agent = IMPALA(IMPALAConfig(name="impala", **RATIOS), float64_net())
    algorithm, model, _, batch = make(agent, rollouts, episodic=episodic)
    all_streams = streams(episodic=episodic, lambda_=1.0)
    slow = slow_impala(model.agent, scaled(batch), agent.config, all_streams, replayed=[])
    assert_matches_the_papers(algorithm, model, None, batch, "impala", slow)


@pytest.mark.parametrize("episodic", [True, False])
def test_impact_with_intrinsic_streams_matches_the_reference(episodic):
    agent = IMPACT(IMPACTConfig(name="impact", clip=CLIP, target_ratio_clip=1.5, **RATIOS), float64_net())
    algorithm, model, target, batch = make(agent, rollouts, target=True, episodic=episodic)
    all_streams = streams(episodic=episodic, lambda_=1.0)
    slow = slow_impact(model.agent, target.agent, scaled(batch), agent.config, all_streams, CLIP)
    assert_matches_the_papers(algorithm, model, target, batch, "impact", slow)
