"""Experience of another policy than the one that learns: what V-trace corrects, on a choice with a known answer."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from starling.algos.impala.config import IMPALAConfig
from starling.algos.impala.impala import IMPALA
from starling.config.parts import NetConfig, TorsoConfig
from starling.types import Batch, EnvSpec, Progress, Trajectory

MU, PI, REWARD = np.array([0.9, 0.1]), np.array([0.5, 0.5]), np.array([0.5, 1.0])
"""One choice an episode: how the actors chose, how the learner does now, and what each action earns."""
COUNTS = [90, 10]  # exactly as MU chooses


def clipped_value(clip_rho):
    """The value that V-trace tends to: that of the policy min(clip_rho mu, pi), normalised (1802.01561, eq. 3)."""
    weight = np.minimum(clip_rho * MU, PI)
    return (weight * REWARD).sum() / weight.sum()


def make(clip_rho):
    """IMPALA and a network whose policy is PI and whose value begins at 0; they share nothing."""
    env = EnvSpec("choice", spaces.Box(0, 1, (1,)), spaces.Discrete(2))
    net = NetConfig(torso=TorsoConfig(hidden=[]), shared=False)
    algorithm = IMPALA(IMPALAConfig(name="impala", clip_rho=clip_rho, entropy_coef=0), net)
    model = algorithm.build(env, algorithm.streams())
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return algorithm, model


def batch(behaviour):
    """A hundred episodes of one step, with the policy that is said to have acted."""
    rows = sum(COUNTS)
    action = torch.arange(2).repeat_interleave(torch.tensor(COUNTS))[None]
    yes, no = torch.ones(1, rows, dtype=torch.bool), torch.zeros(1, rows, dtype=torch.bool)
    steps = Trajectory(
        obs=torch.ones(2, rows, 1),
        first=torch.cat([yes, no]),
        action=action,
        rewards={"extrinsic": torch.from_numpy(REWARD).float()[action]},
        terminated=yes,
        truncated=no,
        valid=yes,
        extras={"behaviour": {"logits": torch.from_numpy(behaviour).float().log().expand(2, rows, 2)}},
        carry={},
        policy_version=torch.zeros(rows, dtype=torch.int64),
    )
    return Batch(steps, torch.ones(rows), torch.zeros(rows), Progress(), torch.Generator())


@pytest.mark.parametrize(
    ("behaviour", "clip_rho", "value"),
    [
        (MU, 5.0, 0.75),  # not clipped: the value of PI
        (MU, 1.0, clipped_value(1.0)),  # the paper's: between the two
        (PI, 1.0, 0.55),  # not corrected: the value of MU, which is wrong for PI
    ],
)
def test_the_value_is_that_of_the_policy_that_the_weights_stand_for(behaviour, clip_rho, value):
    algorithm, model = make(clip_rho)
    data, head = batch(behaviour), list(model.heads["extrinsic"].parameters())
    optimizer = torch.optim.SGD(head, lr=0.005)
    for _ in range(200):
        optimizer.zero_grad()
        algorithm.loss(model, None, data).losses["impala"].backward(inputs=head)
        optimizer.step()
    outputs, _ = model.step(torch.ones(1, 1), torch.ones(1, dtype=torch.bool), {})
    assert outputs["extrinsic"].item() == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize(("behaviour", "better"), [(MU, True), (PI, False)])
def test_the_policy_moves_to_the_better_action_only_if_it_is_corrected(behaviour, better):
    """The actors mostly took the worse action: taken as the learner's own choice, that reinforces it."""
    algorithm, model = make(clip_rho=5.0)
    logits = model.heads["policy"].logits.bias
    algorithm.loss(model, None, batch(behaviour)).losses["impala"].backward()
    assert (logits.grad[1] < logits.grad[0]).item() == better  # a descent raises the second logit
