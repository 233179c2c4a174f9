"""Compare SAC with Stable-Baselines3 in lockstep: its `train` gets the batches and noise of a Starling run.

Starling trains on HalfCheetah with its preset, but with the peer's learning rates. The peer starts with the same
weights and learns from the same transitions with the same noise, by its own losses, optimizers, and targets. After some
updates both have moved away from the start; `apart` is their distance from each other, relative to the distance that
Starling has moved. Three differences are intended; `as ours` is the peer with these changed, `as it comes` without:

- the peer updates its critics before its policy's gradient is computed; Starling computes all gradients first;
- it keeps the logarithm in its density finite with a constant of 1e-6; Starling's is exact even where tanh saturates;
- its temperature minimizes log(alpha) (H - target), Starling's alpha (H - target), as in the paper (1812.05905).

Rounding drives any two runs apart, more with every update. Some of the transitions are also repeated in the simulator:
`simulator` is the largest error of an observation or a reward (Starling stores float32).

    make bench-install && .venv-bench/bin/python benchmarks/sac_lockstep.py --json
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import torch
from halfcheetah import ENV, peer
from machine import describe
from torch.distributions import Normal
from torch.nn.functional import softplus

from starling.config.load import load
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.types import Batch, Tensor

Weights = dict[str, Tensor]
FILLED = 3_000
PEERS_RATES = [f"algo.{part}_optimizer.args={{lr: 0.0003}}" for part in ("actor", "critic", "temperature")]
SIMULATED_EVERY = 40


@dataclass(frozen=True)
class Update:
    """The inputs of an update: weights, and a batch [B, ...] with standard normal noise [B, D]."""

    weights: Weights
    target: Weights
    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    terminated: Tensor
    noise: Tensor
    next_noise: Tensor


def record(updates: int, seed: int) -> list[Update]:
    """The first updates of a Starling run, and one more for the weights after the last of them."""
    set_up_torch(1)
    settings = [f"seed={seed}", f"algo.learning_starts={FILLED}", "eval.every=null", "threads=1"]
    runtime: Any = build_runtime(RunPlan.from_config(load("sac-halfcheetah", [*settings, *PEERS_RATES])))
    algorithm, updates_seen = runtime.learner.algorithm, list[Update]()
    parts = algorithm.parts

    def recorded(model: Any, target: Any, batch: Batch) -> Any:
        steps, generator = batch.trajectory, torch.Generator()
        generator.set_state(batch.generator.get_state())
        next_noise, noise = (torch.randn(steps.action[0].shape, generator=generator) for _ in range(2))
        update = Update(
            weights=model.state_dict(),
            target=target.state_dict(),
            obs=steps.obs[0],
            action=steps.action[0],
            reward=steps.rewards["extrinsic"][0],
            next_obs=steps.obs[1],
            terminated=steps.terminated[0],
            noise=noise,
            next_noise=next_noise,
        )
        updates_seen.append(copy.deepcopy(update))  # before the update changes anything
        return parts(model, target, batch)

    algorithm.parts = recorded
    for _ in runtime.run():
        if len(updates_seen) > updates:
            break
    return updates_seen[: updates + 1]


def simulated(updates_seen: list[Update]) -> float:
    """The largest error when some of the recorded transitions are simulated again."""
    env: Any = gymnasium.make(ENV).unwrapped
    env.reset(seed=0)
    worst = 0.0
    for update in updates_seen[::SIMULATED_EVERY]:
        rows = zip(update.obs, update.action, update.reward, update.next_obs, strict=True)
        for obs, action, reward, next_obs in (tuple(leaf.numpy() for leaf in row) for row in rows):
            position, velocity = np.split(obs.astype(np.float64), [env.model.nq - 1])
            env.set_state(np.concatenate([[0.0], position]), velocity)  # the position along the track is not observed
            env.data.qacc_warmstart[:] = 0.0
            simulated_obs, simulated_reward, *_ = env.step(action)
            worst = max(worst, float(np.abs(simulated_obs - next_obs).max()), abs(simulated_reward - float(reward)))
    return worst


def set_weights(model: Any, weights: Weights, target: Weights) -> None:
    """Copy Starling's weights into the peer's networks."""
    actor, torso = model.actor, "actor.trunks.shared.torso.dense.linears."
    for kind in ("weight", "bias"):
        mean, log_std = weights[f"actor.heads.policy.both.{kind}"].chunk(2)
        hidden = [weights[f"{torso}{i}.{kind}"] for i in range(2)]
        layers = (*actor.latent_pi[::2], actor.mu, actor.log_std)
        for layer, values in zip(layers, (*hidden, mean, log_std), strict=True):
            getattr(layer, kind).data.copy_(values)
    for networks, given in ((model.critic.q_networks, weights), (model.critic_target.q_networks, target)):
        for i, network in enumerate(networks):
            for layer, name in zip(network[::2], ("hidden.0", "hidden.1", "last"), strict=True):
                layer.weight.data.copy_(given[f"critics.ensemble.{name}.weight"][i].T)
                layer.bias.data.copy_(given[f"critics.ensemble.{name}.bias"][i, 0])
    model.log_ent_coef.data.copy_(weights["log_alpha"])


def get_weights(model: Any) -> Weights:
    """All of the peer's weights, one vector per part."""
    parts = {
        "policy": model.actor.parameters(),
        "critics": model.critic.parameters(),
        "targets": model.critic_target.parameters(),
        "temperature": [model.log_ent_coef],
    }
    return {name: torch.cat([leaf.detach().flatten() for leaf in leaves]) for name, leaves in parts.items()}


def learn_as_ours(model: Any) -> None:
    """Remove the intended differences from the peer."""
    _gradients_before_moves(model)
    _exact_density(model)
    _the_papers_temperature(model)


def _gradients_before_moves(model: Any) -> None:
    critic, actor = model.critic.optimizer, model.actor.optimizer
    move_critic, move_actor = critic.step, actor.step
    gradients: list[Tensor] = []

    def keep() -> None:
        gradients[:] = [parameter.grad.clone() for parameter in model.critic.parameters()]

    def move_both() -> None:
        move_actor()
        for parameter, gradient in zip(model.critic.parameters(), gradients, strict=True):
            parameter.grad = gradient  # the policy's loss has added its own gradient
        move_critic()

    critic.step, actor.step = keep, move_both


def _exact_density(model: Any) -> None:
    squashed = model.actor.action_dist

    def log_prob(_action: Tensor, before: Tensor) -> Tensor:
        log_slope = 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))
        total: Tensor = (squashed.distribution.log_prob(before) - log_slope).sum(-1)
        return total

    squashed.log_prob = log_prob


def _the_papers_temperature(model: Any) -> None:
    move = model.ent_coef_optimizer.step

    def step() -> None:
        model.log_ent_coef.grad *= model.log_ent_coef.detach().exp()
        move()

    model.ent_coef_optimizer.step = step


def follow(updates_seen: list[Update], at: list[int], *, as_ours: bool) -> dict[int, dict[str, float]]:
    """The distance of the peer from Starling after given numbers of updates, relative to how far Starling has moved."""
    from stable_baselines3.common.buffers import ReplayBufferSamples
    from stable_baselines3.common.logger import configure

    theirs, ours = (peer("sac", gymnasium.make(ENV), seed=0) for _ in range(2))
    theirs.set_logger(configure(None, []))
    if as_ours:
        learn_as_ours(theirs)
    set_weights(theirs, updates_seen[0].weights, updates_seen[0].target)
    start, found = get_weights(theirs), {}
    noise: list[Tensor] = []
    with patch.object(Normal, "rsample", lambda normal, _shape=None: normal.loc + normal.scale * noise.pop(0)):
        for count, (update, after) in enumerate(pairwise(updates_seen), 1):
            done, reward = update.terminated.float()[:, None], update.reward[:, None]
            batch = ReplayBufferSamples(update.obs, update.action, update.next_obs, done, reward)
            noise[:] = [update.noise, update.next_noise]  # in the order in which train() draws it
            with patch.object(theirs.replay_buffer, "sample", return_value=batch):
                theirs.train(gradient_steps=1, batch_size=len(reward))
            if count in at:
                set_weights(ours, after.weights, after.target)
                here, there = get_weights(ours), get_weights(theirs)
                found[count] = {
                    part: float((there[part] - here[part]).norm() / (here[part] - start[part]).norm()) for part in here
                }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    updates_seen = record(args.updates, args.seed)
    error = simulated(updates_seen)
    print(f"simulator: {error:.1e}")
    at = sorted({1, 10, 100, args.updates})
    results = {name: follow(updates_seen, at, as_ours=name == "as ours") for name in ("as ours", "as it comes")}
    for name, found in results.items():
        for count, apart in found.items():
            shares = ", ".join(f"{part} {share:.1e}" for part, share in apart.items())
            print(f"{name}, apart after {count} updates: {shares}")
    if args.json:
        said = describe("starling-rl", "stable-baselines3", "torch", "gymnasium", "mujoco", "numpy")
        settings = {"env": ENV, "updates": args.updates, "seed": args.seed, "learning_starts": FILLED}
        print(json.dumps({**said, "settings": settings, "simulator": error, "apart": results}))


if __name__ == "__main__":
    main()
