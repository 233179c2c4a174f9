"""Retrace in DQN, Ape-X, and PQN: losses, gradients, and priorities compared with the paper written as loops."""

import copy

import pytest
import torch
from support.inline_runs import all_sequences, run
from support.policy_batches import env_spec, episodes, make_batch, outputs_step_by_step
from support.slow_losses import (
    assert_losses_match,
    build,
    build_target,
    float64_net,
    in_float64,
    slow_dqn,
    slow_retrace_dqn,
    valid_cells,
)
from support.transition_batches import make_transitions

from starling import tree
from starling.algos.apex.apex import ApeX
from starling.algos.apex.config import ApeXConfig
from starling.algos.base import ActInput
from starling.algos.dqn.config import DQNConfig
from starling.algos.dqn.dqn import DQN
from starling.algos.pqn.config import PQNConfig
from starling.algos.pqn.pqn import PQN
from starling.algos.settings import PrioritizedConfig
from starling.config.parts import NetConfig
from starling.ops.explore import epsilon_greedy_probability
from starling.types import Progress, StreamSpec

SETTINGS = {"discount": 0.8, "prioritized": PrioritizedConfig(), "n_step": 3, "retrace": 0.9, "eval_epsilon": 0.2}
STREAMS = [StreamSpec(discount=0.8)]


def make(kind=DQN, **settings):
    config = {DQN: DQNConfig, ApeX: ApeXConfig}[kind]
    algorithm = kind(config(name=kind.__name__.lower(), **{**SETTINGS, **settings}), float64_net())
    return algorithm, build(algorithm, env_spec()), build_target(algorithm, env_spec())


@pytest.mark.parametrize("kind", [DQN, ApeX])
@pytest.mark.parametrize(
    "settings",
    [{"double": True}, {"double": False}, {"retrace": 0.4, "dueling": True}, {"eval_epsilon": 0.0}, {"n_step": 1}],
    ids=str,
)
def test_loss_gradient_and_priorities_match_the_paper(kind, settings):
    algorithm, model, target = make(kind, **settings)
    batch = in_float64(make_transitions("discrete", algorithm.config.n_step))
    slow, priorities = slow_retrace_dqn(model, target, batch, algorithm.config, STREAMS)
    loss = assert_losses_match(algorithm, model, target, batch, {"q": slow})
    torch.testing.assert_close(loss.priorities, priorities)


@pytest.mark.parametrize(
    "settings", [{"retrace": None}, {"retrace": 0.5}, {"eval_epsilon": 0.9}, {"double": True}], ids=str
)
def test_loss_on_this_batch_depends_on_each_setting(settings):
    batch = in_float64(make_transitions("discrete", 3))
    losses = [
        algorithm.loss(model, target, batch).losses["q"].item()
        for algorithm, model, target in (make(**changed) for changed in ({}, settings))
    ]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def test_one_step_with_a_greedy_policy_is_q_learning():
    algorithm, model, target = make(n_step=1, eval_epsilon=0.0)
    batch = in_float64(make_transitions("discrete", 1))
    slow, _ = slow_dqn(model, target, batch, algorithm.config, STREAMS)
    torch.testing.assert_close(algorithm.loss(model, target, batch).losses["q"], slow)


@pytest.mark.parametrize("kind", [DQN, ApeX, PQN])
def test_probability_of_the_action_is_recorded_with_the_epsilon_that_acted(kind):
    """It is not recomputed: in the run below, epsilon and the network change while replay keeps what they were."""
    configs = {DQN: DQNConfig, ApeX: ApeXConfig, PQN: PQNConfig}
    algorithm = kind(configs[kind](name="x", retrace=0.9, epsilon=0.5), NetConfig())
    model = algorithm.build(env_spec(), algorithm.streams())
    obs, first = torch.randn(64, 5), torch.zeros(64, dtype=torch.bool)
    noise = torch.rand(64, 2, generator=torch.Generator().manual_seed(0))
    inputs = ActInput(obs, first, {}, torch.zeros(64).long(), 1, Progress(), True, lambda n: noise)
    output = algorithm.act(model, inputs)
    q = model.step(obs, first, {})[0]["extrinsic"]
    greedy = output.action == q.argmax(-1)
    assert greedy.any()
    assert not greedy.all()
    expected = torch.where(greedy, 0.5 + 0.5 / 3, 0.5 / 3)
    torch.testing.assert_close(output.extras["mu"], expected)
    assert "mu" not in kind(configs[kind](name="x"), NetConfig()).act(model, inputs).extras


def test_replay_keeps_the_recorded_probabilities():
    settings = ["env={id: toy/counting, num: 3}", "algo.n_step=3", "algo.retrace=0.9", "algo.learning_starts=100"]
    settings += ["algo.epsilon={start: 1.0, end: 0.1, steps: 300}", "algo.optimizer.args.lr=0.01", "algo.fragment=8"]
    runtime = run("dqn-cartpole", 400, *settings)
    steps = tree.to_torch(all_sequences(runtime))
    mu = steps.extras["mu"][:-1][steps.valid]
    actions = 4
    assert mu.max() <= 1.0
    assert (mu == 1.0 / actions).any()  # while epsilon was 1
    assert mu.unique().numel() > 6  # epsilon has fallen with every fragment since
    model = runtime.learner.model
    q = model.unroll_trajectory(steps)[0]["extrinsic"][:-1]
    now = epsilon_greedy_probability(q, 0.1, steps.action)[steps.valid]
    assert not torch.allclose(now, mu, atol=0.05)
    runtime.close()


def test_initial_priorities_equal_the_learners_with_the_same_weights():
    algorithm, model, _ = make(ApeX)
    batch = in_float64(make_transitions("discrete", 3))
    steps = batch.trajectory
    q = {"extrinsic": model.unroll_trajectory(steps)[0]["extrinsic"].detach()}
    steps.extras["q"] = q
    first = algorithm.priority(tree.to_numpy(steps))
    torch.testing.assert_close(torch.from_numpy(first), algorithm.loss(model, model, batch).priorities)


def slow_pqn_targets(before, steps, config):
    """Q(s_t, a_t) + sum_{s>=t} gamma^(s-t) (prod lambda min(1, pi / mu)) delta_s within each episode."""
    with torch.no_grad():
        q = [outputs["extrinsic"].tolist() for outputs in outputs_step_by_step(before, steps)]

    def pi(t, b):
        best = q[t][b].index(max(q[t][b]))
        return [config.eval_epsilon / 3 + (1 - config.eval_epsilon) * (a == best) for a in range(3)]

    targets = {}
    for b, start, stop in episodes(steps.valid):
        for t in range(start, stop):
            total, weight = q[t][b][steps.action[t, b]], 1.0
            for s in range(t, stop):
                action = steps.action[s, b].item()
                if s > t:
                    weight *= config.retrace * min(1.0, pi(s, b)[action] / steps.extras["mu"][s, b].item())
                gamma = 0.0 if steps.terminated[s, b] else config.discount
                v = sum(p * value for p, value in zip(pi(s + 1, b), q[s + 1][b], strict=True))
                total += weight * (steps.rewards["extrinsic"][s, b].item() + gamma * v - q[s][b][action])
                weight *= gamma
            targets[t, b] = total
    return targets


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_pqn_regresses_on_retraces_targets(core):
    config = PQNConfig(name="pqn", discount=0.9, minibatches=1, retrace=0.8, eval_epsilon=0.2)
    algorithm = PQN(config, float64_net(core))
    before = build(algorithm, env_spec())
    batch = in_float64(
        make_batch(before, lambda shape, random: {"mu": torch.rand(shape, generator=random).clamp(min=0.1)})
    )
    model = copy.deepcopy(before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        ready = algorithm.prepare(before, None, batch)
    targets, seen = slow_pqn_targets(before, batch.trajectory, config), outputs_step_by_step(model, batch.trajectory)
    cells = valid_cells(batch.trajectory)
    slow = sum(
        (targets[t, b] - seen[t]["extrinsic"][b, batch.trajectory.action[t, b]]) ** 2 / 2 for t, b in cells
    ) / len(cells)
    assert_losses_match(algorithm, model, None, ready, {"q": slow})


class Endless(PQN):
    def streams(self):
        return (*super().streams(), StreamSpec("bonus", 0.9, 0.6, episodic=False))


def test_pqn_values_a_final_observation_of_a_non_episodic_stream_like_the_next_episode():
    algorithm = Endless(PQNConfig(name="pqn", minibatches=1, retrace=0.9), float64_net())
    model = build(algorithm, env_spec())
    batch = in_float64(make_batch(model, lambda shape, random: {"mu": torch.ones(shape)}, intrinsic=("bonus",)))
    steps = batch.trajectory
    with torch.no_grad():
        first = algorithm.prepare(copy.deepcopy(model), None, batch).prepared["bonus"]
        steps.obs[1:][steps.terminated | steps.truncated] = 7.0
        again = algorithm.prepare(copy.deepcopy(model), None, batch).prepared["bonus"]
    torch.testing.assert_close(first[steps.valid], again[steps.valid])
