"""PQN's targets, loss and gradient against a slow reference, and what its settings mean."""

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
    """G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1}), each episode by itself from its end."""
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
    """The mean over valid steps of 1/2 (G_t - Q(s_t, a_t))^2 (2407.04811, algorithm 1), or its Huber form."""
    steps, seen = batch.trajectory, outputs_step_by_step(model, batch.trajectory)
    targets, loss = slow_targets(before, steps, 0.9, config.q_lambda), torch.zeros((), dtype=torch.float64)
    for t, b in valid_cells(steps):
        error = targets[t, b] - seen[t]["extrinsic"][b, steps.action[t, b]]
        loss = loss + (error**2 / 2 if config.huber is None else slow_huber(error, config.huber))
    return loss / len(valid_cells(steps))


def make(core="none", **settings):
    """The algorithm, the model before the first update on a batch, the model after some, and the batch."""
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
def test_loss_and_gradient_are_those_of_the_paper(core, settings):
    algorithm, before, model, batch = make(core, **settings)
    with torch.no_grad():
        ready = algorithm.prepare(before, None, batch)
    assert_losses_match(algorithm, model, None, ready, {"q": slow_pqn(before, model, batch, algorithm.config)})


class Endless(PQN):
    def streams(self):
        return (*super().streams(), StreamSpec("bonus", 0.9, 0.6, episodic=False))


def test_a_final_observation_is_worth_what_the_next_episode_is_to_a_stream_that_goes_on():
    """Whatever Q says of the final observation itself, which never gets a target, changes no target."""
    algorithm = Endless(PQNConfig(name="pqn", **SETTINGS), float64_net())
    model = build(algorithm, env_spec())
    batch = in_float64(make_batch(model, lambda shape, random: {}, intrinsic=("bonus",)))
    steps = batch.trajectory
    with torch.no_grad():
        targets = algorithm.prepare(model, None, batch).prepared["bonus"]
        steps.obs[1:][steps.terminated | steps.truncated] = 7.0  # one of them ends the rollout
        again = algorithm.prepare(model, None, batch).prepared["bonus"]
    torch.testing.assert_close(targets[steps.valid], again[steps.valid])


def test_epsilon_falls_in_training_and_is_its_own_in_evaluation():
    algorithm = PQN(PQNConfig(name="pqn", epsilon={"start": 1.0, "end": 0.2, "fraction": 0.5}), NetConfig())
    model = algorithm.build(env_spec(), algorithm.streams())
    rows = 2000

    def random_share(explore, fraction):
        noise = torch.rand(rows, 2, generator=torch.Generator().manual_seed(0))
        obs, first = torch.zeros(rows, 5), torch.zeros(rows, dtype=torch.bool)
        progress = Progress(fraction=fraction)
        inputs = ActInput(obs, first, {}, torch.arange(rows), rows, progress, explore, lambda n: noise)
        action = algorithm.act(model, inputs).action
        return (action != action.mode().values).float().mean().item()

    assert random_share(True, 0.0) == pytest.approx(2 / 3, abs=0.05)
    assert random_share(True, 0.9) == pytest.approx(0.2 * 2 / 3, abs=0.03)
    assert random_share(False, 0.0) == 0
    assert algorithm.exploration(Progress(fraction=0.25), 8) == {"epsilon": pytest.approx(0.6)}


def test_evaluation_takes_its_own_share_of_random_actions():
    algorithm = PQN(PQNConfig(name="pqn", eval_epsilon=1.0), NetConfig())
    model, noise = algorithm.build(env_spec(), algorithm.streams()), torch.rand(300, 2)
    obs, first = torch.zeros(300, 5), torch.zeros(300, dtype=torch.bool)
    inputs = ActInput(obs, first, {}, torch.arange(300), 300, Progress(), False, lambda n: noise)
    assert set(algorithm.act(model, inputs).action.tolist()) == {0, 1, 2}


def test_a_batch_is_split_by_step_or_by_env_where_the_network_is_recurrent():
    plain, recurrent = (PQN(PQNConfig(name="pqn"), NetConfig(core={"kind": core})) for core in ("none", "lstm"))
    assert (plain.learning().split, recurrent.learning().split) == ("step", "env")
    plain.tables(4)
    with pytest.raises(UserError, match=r"more than the batch's 4 envs \(a recurrent batch is split by env\)"):
        recurrent.tables(4)


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match=r"algo\.minibatches=600 is more than the batch's 512 steps"):
        RunPlan.from_config(load("pqn-cartpole", ["env.num=8", "algo.minibatches=600"]))
    with pytest.raises(UserError, match="needs a Discrete action space"):
        RunPlan.from_config(load("pqn-cartpole", ["env.id=Pendulum-v1"]))
