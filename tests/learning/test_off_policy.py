"""Off-policy experience on a bandit with known values: what V-trace corrects."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from starling.algos.impala.config import IMPALAConfig
from starling.algos.impala.impala import IMPALA
from starling.config.parts import NetConfig, TorsoConfig
from starling.types import Batch, EnvSpec, Progress, Trajectory

MU, PI, REWARD = np.array([0.9, 0.1]), np.array([0.5, 0.5]), np.array([0.5, 1.0])
"""A bandit: the actors' policy, the learner's policy, and the reward of each action."""
COUNTS = [90, 10]  # exactly in the proportion of MU


def clipped_value(clip_rho):
    """The fixed point of V-trace: the value of the policy min(clip_rho mu, pi), normalized (1802.01561, eq. 3)."""
    weight = np.minimum(clip_rho * MU, PI)
    return (weight * REWARD).sum() / weight.sum()


def make(clip_rho):
    """IMPALA and a network with policy PI and initial value 0, which share no parameters."""
    env = EnvSpec("choice", spaces.Box(0, 1, (1,)), spaces.Discrete(2))
    net = NetConfig(torso=TorsoConfig(hidden=[]), shared=False)
    algorithm = IMPALA(IMPALAConfig(name="impala", clip_rho=clip_rho, entropy_coef=0), net)
    model = algorithm.build(env, algorithm.streams())
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return algorithm, model


def batch(recorded_policy):
    """A hundred episodes of one step, with the policy that is recorded as having acted."""
    rows = sum(COUNTS)
    action = torch.arange(2).repeat_interleave(torch.tensor(COUNTS))[None]
    true, false = torch.ones(1, rows, dtype=torch.bool), torch.zeros(1, rows, dtype=torch.bool)
    steps = Trajectory(
        obs=torch.ones(2, rows, 1),
        first=torch.cat([true, false]),
        action=action,
        rewards={"extrinsic": torch.from_numpy(REWARD).float()[action]},
        terminated=true,
        truncated=false,
        valid=true,
        extras={"behavior": {"logits": torch.from_numpy(recorded_policy).float().log().expand(2, rows, 2)}},
        carry={},
        policy_version=torch.zeros(rows, dtype=torch.int64),
    )
    return Batch(steps, torch.ones(rows), torch.zeros(rows), Progress(), torch.Generator())


@pytest.mark.parametrize(
    ("recorded_policy", "clip_rho", "value"),
    [
        (MU, 5.0, 0.75),  # not clipped: the value of PI
        (MU, 1.0, clipped_value(1.0)),  # the paper's: in between
        (PI, 1.0, 0.55),  # not corrected: the value of MU, which is wrong for PI
    ],
)
def test_value_is_that_of_the_policy_implied_by_the_weights(recorded_policy, clip_rho, value):
    algorithm, model = make(clip_rho)
    data, head = batch(recorded_policy), list(model.heads["extrinsic"].parameters())
    optimizer = torch.optim.SGD(head, lr=0.005)
    for _ in range(200):
        optimizer.zero_grad()
        algorithm.loss(model, None, data).losses["impala"].backward(inputs=head)
        optimizer.step()
    outputs, _ = model.step(torch.ones(1, 1), torch.ones(1, dtype=torch.bool), {})
    assert outputs["extrinsic"].item() == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize(("recorded_policy", "better"), [(MU, True), (PI, False)])
def test_policy_improves_only_with_the_correction(recorded_policy, better):
    """The actors mostly took the worse action; treated as the learner's own choice, it is reinforced."""
    algorithm, model = make(clip_rho=5.0)
    logits = model.heads["policy"].logits.bias
    algorithm.loss(model, None, batch(recorded_policy)).losses["impala"].backward()
    assert (logits.grad[1] < logits.grad[0]).item() == better  # gradient descent raises the second logit
