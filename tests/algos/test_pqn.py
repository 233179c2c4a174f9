"""PQN's targets, loss, and gradient compared with a slow reference, and its settings."""

import copy

import pytest
import torch
from support.policy_batches import env_spec, episodes, make_batch, outputs_step_by_step
from support.slow_losses import assert_losses_match, build, float64_net, in_float64, slow_huber, valid_cells

from starling.algos.base import ActInput
from starling.algos.pqn.config import PQNConfig
from starling.algos.pqn.pqn import PQN
from starling.config.load import load
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.launch.plan import RunPlan
from starling.types import Progress, StreamSpec

SETTINGS = {"discount": 0.9, "q_lambda": 0.6, "minibatches": 1}


def slow_targets(before, steps, discount, lam):
    """G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1}), within each episode from its end."""
    with torch.no_grad():
        q = outputs_step_by_step(before, steps)
    targets = {}
    for b, start, stop in episodes(steps.valid):
        following = None
        for t in reversed(range(start, stop)):
            best = q[t + 1]["extrinsic"][b].max().item()
            mixed = best if following is None else (1 - lam) * best + lam * following
            alive = 0.0 if steps.terminated[t, b] else 1.0
            following = steps.rewards["extrinsic"][t, b].item() + discount * alive * mixed
            targets[t, b] = following
    return targets


def slow_pqn(before, model, batch, config):
    """The mean over valid steps of 1/2 (G_t - Q(s_t, a_t))^2 (2407.04811, algorithm 1), or its Huber variant."""
    steps, seen = batch.trajectory, outputs_step_by_step(model, batch.trajectory)
    targets, loss = slow_targets(before, steps, 0.9, config.q_lambda), torch.zeros((), dtype=torch.float64)
    for t, b in valid_cells(steps):
        error = targets[t, b] - seen[t]["extrinsic"][b, steps.action[t, b]]
        loss = loss + (error**2 / 2 if config.huber is None else slow_huber(error, config.huber))
    return loss / len(valid_cells(steps))


def make(core="none", **settings):
    """The algorithm, the model before the first update on a batch, the model after some updates, and the batch."""
    algorithm = PQN(PQNConfig(name="pqn", **{**SETTINGS, **settings}), float64_net(core))
    before = build(algorithm, env_spec())
    batch = in_float64(make_batch(before, lambda shape, random: {}))
    model = copy.deepcopy(before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return algorithm, before, model, batch


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("settings", [{}, {"q_lambda": 0.0}, {"q_lambda": 1.0}, {"huber": 0.7}], ids=str)
def test_loss_and_gradient_match_the_paper(core, settings):
    algorithm, before, model, batch = make(core, **settings)
    with torch.no_grad():
        ready = algorithm.prepare(before, None, batch)
    assert_losses_match(algorithm, model, None, ready, {"q": slow_pqn(before, model, batch, algorithm.config)})


class Endless(PQN):
    def streams(self):
        return (*super().streams(), StreamSpec("bonus", 0.9, 0.6, episodic=False))


def test_non_episodic_stream_values_a_final_observation_like_the_next_episode():
    """The Q values of the final observation itself, which are never trained, affect no target."""
    algorithm = Endless(PQNConfig(name="pqn", **SETTINGS), float64_net())
    model = build(algorithm, env_spec())
    batch = in_float64(make_batch(model, lambda shape, random: {}, intrinsic=("bonus",)))
    steps = batch.trajectory
    with torch.no_grad():
        targets = algorithm.prepare(model, None, batch).prepared["bonus"]
        steps.obs[1:][steps.terminated | steps.truncated] = 7.0  # one of them ends the rollout
        again = algorithm.prepare(model, None, batch).prepared["bonus"]
    torch.testing.assert_close(targets[steps.valid], again[steps.valid])


def test_epsilon_decays_in_training_and_is_separate_in_evaluation():
    algorithm = PQN(PQNConfig(name="pqn", epsilon={"start": 1.0, "end": 0.2, "fraction": 0.5}), NetConfig())
    model = algorithm.build(env_spec(), algorithm.streams())
    num_envs = 2000

    def random_share(explore, fraction):
        noise = torch.rand(num_envs, 2, generator=torch.Generator().manual_seed(0))
        obs, first = torch.zeros(num_envs, 5), torch.zeros(num_envs, dtype=torch.bool)
        progress = Progress(fraction=fraction)
        inputs = ActInput(obs, first, {}, torch.arange(num_envs), num_envs, progress, explore, lambda n: noise)
        action = algorithm.act(model, inputs).action
        return (action != action.mode().values).float().mean().item()

    assert random_share(True, 0.0) == pytest.approx(2 / 3, abs=0.05)
    assert random_share(True, 0.9) == pytest.approx(0.2 * 2 / 3, abs=0.03)
    assert random_share(False, 0.0) == 0
    assert algorithm.exploration_metrics(Progress(fraction=0.25), 8) == {"epsilon": pytest.approx(0.6)}


def test_evaluation_uses_eval_epsilon():
    algorithm = PQN(PQNConfig(name="pqn", eval_epsilon=1.0), NetConfig())
    model, noise = algorithm.build(env_spec(), algorithm.streams()), torch.rand(300, 2)
    obs, first = torch.zeros(300, 5), torch.zeros(300, dtype=torch.bool)
    inputs = ActInput(obs, first, {}, torch.arange(300), 300, Progress(), False, lambda n: noise)
    assert set(algorithm.act(model, inputs).action.tolist()) == {0, 1, 2}


def test_minibatches_split_by_step_or_for_recurrent_networks_by_env():
    plain, recurrent = (PQN(PQNConfig(name="pqn"), NetConfig(core={"kind": core})) for core in ("none", "lstm"))
    assert (plain.learning().split, recurrent.learning().split) == ("step", "env")
    plain.tables(4)
    with pytest.raises(UserError, match=r"more than the batch's 4 envs \(a recurrent batch is split by env\)"):
        recurrent.tables(4)


def test_impossible_settings_are_rejected():
    with pytest.raises(UserError, match=r"algo\.minibatches=600 is more than the batch's 512 steps"):
        RunPlan.from_config(load("pqn-cartpole", ["env.num=8", "algo.minibatches=600"]))
    with pytest.raises(UserError, match="needs a Discrete action space"):
        RunPlan.from_config(load("pqn-cartpole", ["env.id=Pendulum-v1"]))
