"""LASER's trust region ignores experience of another policy that would mislead the agent's own."""

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
    """The exact return of the policy in an endless corridor: 2 (p - 2) / (p (1 - p)) if it goes right with p."""
    right = outputs_of(load(result).model, torch.ones(1, 1))["policy"].logits.softmax(-1)[0, 1].item()
    return 2 * (right - 2) / (right * (1 - right))


def test_only_the_trust_region_learns_a_good_policy_from_shared_experience(trial):
    """The best policy goes right with probability 0.59: a return of -11.7.

    In seven eighths of the envs another agent acts, which goes right with 0.05. With clipped ratios, V-trace evaluates
    min(mu, pi), normalized, instead of pi (1909.11583). For pi = 0.59 this goes right with 0.11, too little, so V-trace
    alone raises pi until min(mu, pi) goes right with 0.59, near pi = 0.97: then it hardly ever leaves the corridor.
    There KL(pi || min(mu, pi) normalized) is 0.67, so the trust region ignores these states, and the agent's own eighth
    of the envs is enough.
    """
    with_laser = trial("laser", "impala-cartpole", [*SETTINGS, "algo.laser={threshold: 0.3}"], expected_return)
    without = trial("V-trace alone", "impala-cartpole", SETTINGS, expected_return)
    assert with_laser > -15
    assert without < -25
