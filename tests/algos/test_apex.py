"""Ape-X: initial priorities compared with the paper and with the learner's own, and per-env epsilons."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from starling import tree
from starling.algos.apex.apex import ApeX
from starling.algos.apex.config import ApeXConfig
from starling.algos.base import ActInput
from starling.config.load import load
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.errors import UserError
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.types import Batch, EnvSpec, Progress, Trajectory

DISCOUNT, ACTIONS, NUM_ENVS = 0.9, 3, 4
ENV = EnvSpec("random", spaces.Box(-9, 9, (5,), np.float32), spaces.Discrete(ACTIONS))
STEPS = {"full": 3, "terminated": 2, "truncated": 2, "terminated at the last step": 3, "one step": 1}
"""Kinds of sequences of up to 3 steps -> number of valid steps."""


def make(**settings):
    torch.manual_seed(1)
    net = NetConfig(torso=TorsoConfig(hidden=[16]))
    algorithm = ApeX(ApeXConfig(name="apex", discount=DISCOUNT, **settings), net)
    return algorithm, algorithm.build(ENV, algorithm.streams())


def act_input(obs, env_index=None, explore=True, num_envs=NUM_ENVS, noise=0.5):
    """An input of `act` with these observations [B, 5]."""
    count = len(obs)
    return ActInput(
        obs=obs,
        first=torch.zeros(count, dtype=torch.bool),
        carry={},
        env_index=torch.arange(count) if env_index is None else env_index,
        num_envs=num_envs,
        progress=Progress(),
        explore=explore,
        noise=lambda n: torch.full((count, n), noise),
    )


def recorded_sequences(algorithm, model, length=3):
    """One sequence of each kind, [T, B], as a ring returns it: padded with the final observation and zeros."""
    taken, random = torch.tensor(list(STEPS.values())), torch.Generator().manual_seed(2)
    rows, step = len(taken), torch.arange(length + 1)[:, None]
    obs = torch.randn(length + 1, rows, 5, generator=random)
    obs = obs.gather(0, torch.minimum(step, taken)[..., None].expand(-1, -1, 5))
    acted = [algorithm.act(model, act_input(obs[t], noise=0.9 if t % 3 else 0.001)) for t in range(length + 1)]
    valid = step[:-1] < taken
    ends = (step[:-1] == taken - 1).numpy()
    kinds = np.array(list(STEPS))
    return Trajectory(
        obs=obs.numpy(),
        first=np.zeros((length + 1, rows), bool),
        action=(torch.stack([a.action for a in acted])[:-1] * valid).numpy(),
        rewards={"extrinsic": (torch.randn(length, rows, generator=random) * valid).numpy()},
        terminated=ends & np.char.startswith(kinds, "terminated"),
        truncated=ends & np.isin(kinds, ["truncated", "one step"]),
        valid=valid.numpy(),
        extras=tree.to_numpy(tree.stack([a.extras for a in acted])),
        carry={},
        policy_version=np.zeros(rows, np.int64),
    )


def slow_td_error(model, sequence, row):
    """|r_0 + g r_1 + ... + g^m max_a q(S_m, a) - q(S_0, A_0)| (1803.00933, section 4.1), one step at a time."""

    def q(t):
        return model.step(torch.from_numpy(sequence.obs[t, [row]]), torch.zeros(1, dtype=torch.bool), {})[0][
            "extrinsic"
        ]

    target, discount, last = 0.0, 1.0, 0
    for t in range(sequence.length):
        if sequence.valid[t, row]:
            target += discount * float(sequence.rewards["extrinsic"][t, row])
            discount *= 0.0 if sequence.terminated[t, row] else DISCOUNT
            last = t + 1
    target += discount * q(last).max().item()
    return abs(target - q(0)[0, sequence.action[0, row]].item())


def learner_priorities(algorithm, model, sequence):
    """The learner's priorities if both its online and its target network are the network that acted."""
    rows, generator = sequence.batch_size, torch.Generator()
    batch = Batch(tree.to_torch(sequence), torch.ones(rows), torch.zeros(rows).long(), Progress(), generator)
    return algorithm.loss(model, model, batch).priorities.numpy()


def test_initial_priorities_match_the_paper():
    algorithm, model = make()
    sequence = recorded_sequences(algorithm, model)
    expected = [slow_td_error(model, sequence, row) for row in range(sequence.batch_size)]
    np.testing.assert_allclose(algorithm.priority(sequence), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_initial_priorities_equal_the_learners(double):
    algorithm, model = make(double=double)
    sequence = recorded_sequences(algorithm, model)
    expected = learner_priorities(algorithm, model, sequence)
    np.testing.assert_allclose(algorithm.priority(sequence), expected, rtol=1e-5, atol=1e-5)


def test_sequences_have_greedy_and_other_first_actions():
    """Otherwise the comparisons above could not detect a priority that mixes up the taken and the best action."""
    algorithm, model = make()
    extras = recorded_sequences(algorithm, model).extras
    worse = extras["taken"]["extrinsic"] < extras["best"]["extrinsic"]
    assert worse.any()
    assert not worse.all()


def test_initial_priorities_in_a_run_equal_the_learners():
    """Nothing is learned here, so the actors' priority of every item must equal the learner's."""
    settings = ["env={id: toy/counting, num: 3}", "algo.name=apex", "algo.n_step=3", "algo.fragment=8"]
    settings += ["algo.learning_starts=50000"]
    runtime = build_runtime(RunPlan.from_config(load("dqn-cartpole", settings)))
    for _ in runtime.run():
        if runtime.env_steps > 300:
            break
    table, algorithm = runtime.store.mixture.tables[0], runtime.learner.algorithm
    slots = np.nonzero(table._storage._windows.steps)[0]
    sequence = table._storage.gather(slots)
    initial = table._sampler._tree.get(slots) ** (1 / table.spec.priority_exponent)
    assert not sequence.valid.all()
    assert sequence.terminated.any()
    assert sequence.truncated.any()
    np.testing.assert_allclose(
        initial, learner_priorities(algorithm, runtime.learner.model, sequence), rtol=1e-4, atol=1e-5
    )
    runtime.close()


def test_envs_explore_with_their_own_epsilon_of_the_ladder():
    algorithm, _ = make(epsilon=0.4, ladder=7.0)
    inputs = act_input(torch.zeros(NUM_ENVS, 5))
    expected = [0.4 ** (1 + 7 * i / (NUM_ENVS - 1)) for i in range(NUM_ENVS)]
    torch.testing.assert_close(algorithm.epsilon(inputs), torch.tensor(expected))
    # Some envs of the run; other actors have the rest.
    subset = act_input(torch.zeros(2, 5), env_index=torch.tensor([2, 3]))
    torch.testing.assert_close(algorithm.epsilon(subset), torch.tensor(expected[2:]))
    assert algorithm.epsilon(act_input(torch.zeros(1, 5), num_envs=1)).item() == pytest.approx(0.4)


def test_evaluation_uses_eval_epsilon():
    algorithm, _ = make(eval_epsilon=0.01)
    assert algorithm.epsilon(act_input(torch.zeros(2, 5), explore=False)) == 0.01


def test_recurrent_network_is_rejected():
    with pytest.raises(UserError, match="apex learns from single transitions"):
        ApeX(ApeXConfig(name="apex"), NetConfig(core=CoreConfig(kind="lstm")))
