"""LASER's trust region leaves out what another policy's experience says wrongly about one's own."""

import torch
from support.trained_agents import load
from support.training_scores import outputs_of

SETTINGS = [
    *[
        "algo.name=support.shared_experience:Shared",
        "env={id: support.delayed_actors:Corridor, num: 32}",
        "net.torso.hidden=[]",
    ],
    *["algo.unroll=8", "algo.batch=32", "algo.discount=0.95", "algo.trace_lambda=1", "algo.entropy_coef=0"],
    *["algo.optimizer={name: SGD, args: {lr: 0.002}, clip_norm: 1000}", "stop.env_steps=30000"],
]


def expected_return(result):
    """The exact return of the learned policy in a corridor without a limit, 2 (p - 2) / (p (1 - p)) if p is right."""
    right = outputs_of(load(result).model, torch.ones(1, 1))["policy"].logits.softmax(-1)[0, 1].item()
    return 2 * (right - 2) / (right * (1 - right))


def test_only_the_trust_region_keeps_its_own_policy_among_shared_experience(trial):
    """The corridor is best left by going right with a probability of 0.59: -11.7.

    In seven eighths of the envs acts another agent, right with 0.05. Clipped weights value min(mu, pi) over its sum
    instead of pi (1909.11583). Of pi = 0.59 this is 0.11, which is too little, so V-trace alone raises pi until min(mu,
    pi) goes right in 0.59, near pi = 0.97: it hardly leaves the corridor any more. KL(pi || min(mu, pi) / sum) is 0.67
    there, so that the trust region leaves these states out, and the agent's own eighth is enough.
    """
    laser = trial("laser", "impala-cartpole", [*SETTINGS, "algo.laser={threshold: 0.3}"], expected_return)
    without = trial("V-trace alone", "impala-cartpole", SETTINGS, expected_return)
    assert laser > -15
    assert without < -25
