"""Ape-X: first priorities against the paper written as a loop and against the learner's own, and who explores."""

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

DISCOUNT, ACTIONS, ROWS = 0.9, 3, 4
ENV = EnvSpec("random", spaces.Box(-9, 9, (5,), np.float32), spaces.Discrete(ACTIONS))
STEPS = {"full": 3, "terminated": 2, "truncated": 2, "terminated at the last step": 3, "one step": 1}
"""Kinds of windows of up to 3 steps: how many were really taken."""


def make(**settings):
    torch.manual_seed(1)
    net = NetConfig(torso=TorsoConfig(hidden=[16]))
    algorithm = ApeX(ApeXConfig(name="apex", discount=DISCOUNT, **settings), net)
    return algorithm, algorithm.build(ENV, algorithm.streams())


def see(obs, rows=None, explore=True, total=ROWS, noise=0.5):
    """An act() input of these observations [B, 5]."""
    count = len(obs)
    return ActInput(
        obs=obs,
        first=torch.zeros(count, dtype=torch.bool),
        carry={},
        env_index=torch.arange(count) if rows is None else rows,
        num_envs=total,
        progress=Progress(),
        explore=explore,
        noise=lambda n: torch.full((count, n), noise),
    )


def recorded_windows(algorithm, model, length=3):
    """A window of each kind [T, B], as a ring hands it out: the final observation repeated, all else zero."""
    taken, random = torch.tensor(list(STEPS.values())), torch.Generator().manual_seed(2)
    rows, step = len(taken), torch.arange(length + 1)[:, None]
    obs = torch.randn(length + 1, rows, 5, generator=random)
    obs = obs.gather(0, torch.minimum(step, taken)[..., None].expand(-1, -1, 5))
    acted = [algorithm.act(model, see(obs[t], noise=0.9 if t % 3 else 0.001)) for t in range(length + 1)]
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


def slow_error(model, window, row):
    """|r_0 + g r_1 + ... + g^m max_a q(S_m, a) - q(S_0, A_0)| (1803.00933, section 4.1), one step after another."""

    def q(t):
        return model.step(torch.from_numpy(window.obs[t, [row]]), torch.zeros(1, dtype=torch.bool), {})[0]["extrinsic"]

    target, discount, last = 0.0, 1.0, 0
    for t in range(window.length):
        if window.valid[t, row]:
            target += discount * float(window.rewards["extrinsic"][t, row])
            discount *= 0.0 if window.terminated[t, row] else DISCOUNT
            last = t + 1
    target += discount * q(last).max().item()
    return abs(target - q(0)[0, window.action[0, row]].item())


def learners_error(algorithm, model, window):
    """What the learner would say of a window if online and target network were those that acted."""
    rows, generator = window.rows, torch.Generator()
    batch = Batch(tree.to_torch(window), torch.ones(rows), torch.zeros(rows).long(), Progress(), generator)
    return algorithm.loss(model, model, batch).priorities.numpy()


def test_first_priorities_are_the_papers():
    algorithm, model = make()
    window = recorded_windows(algorithm, model)
    expected = [slow_error(model, window, row) for row in range(window.rows)]
    np.testing.assert_allclose(algorithm.priority(window), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_first_priorities_are_what_the_learner_would_say(double):
    algorithm, model = make(double=double)
    window = recorded_windows(algorithm, model)
    expected = learners_error(algorithm, model, window)
    np.testing.assert_allclose(algorithm.priority(window), expected, rtol=1e-5, atol=1e-5)


def test_the_taken_action_counts_also_where_it_is_not_the_best():
    """Both kinds must occur in the windows above, or the loop would agree with a priority that mixes them up."""
    algorithm, model = make()
    extras = recorded_windows(algorithm, model).extras
    worse = extras["taken"]["extrinsic"] < extras["best"]["extrinsic"]
    assert worse.any()
    assert not worse.all()


def test_replay_of_a_real_run_begins_with_the_learners_priorities():
    """Nothing is learned here, so what actors said of every item must be what the learner says of it."""
    settings = ["env={id: toy/counting, num: 3}", "algo.name=apex", "algo.n_step=3", "algo.fragment=8"]
    settings += ["algo.learning_starts=50000"]
    runtime = build_runtime(RunPlan.from_config(load("dqn-cartpole", settings)))
    for _ in runtime.run():
        if runtime.env_steps > 300:
            break
    table, algorithm = runtime.store.mixture.tables[0], runtime.learner.algorithm
    slots = np.nonzero(table._storage._windows.steps)[0]
    window = table._storage.gather(slots)
    said = table._sampler._tree.get(slots) ** (1 / table.spec.priority_exponent)
    assert not window.valid.all()
    assert window.terminated.any()
    assert window.truncated.any()
    np.testing.assert_allclose(said, learners_error(algorithm, runtime.learner.model, window), rtol=1e-4, atol=1e-5)
    runtime.close()


def test_rows_explore_by_their_place_on_the_ladder():
    algorithm, _ = make(epsilon=0.4, ladder=7.0)
    inputs = see(torch.zeros(ROWS, 5))
    expected = [0.4 ** (1 + 7 * i / (ROWS - 1)) for i in range(ROWS)]
    torch.testing.assert_close(algorithm.epsilon(inputs), torch.tensor(expected))
    later = see(torch.zeros(2, 5), rows=torch.tensor([2, 3]))  # one actor's rows, of which others have the rest
    torch.testing.assert_close(algorithm.epsilon(later), torch.tensor(expected[2:]))
    assert algorithm.epsilon(see(torch.zeros(1, 5), total=1)).item() == pytest.approx(0.4)


def test_nobody_explores_when_evaluating():
    algorithm, _ = make(eval_epsilon=0.01)
    assert algorithm.epsilon(see(torch.zeros(2, 5), explore=False)) == 0.01


def test_a_recurrent_network_is_refused_in_its_own_name():
    with pytest.raises(UserError, match="apex learns from single transitions"):
        ApeX(ApeXConfig(name="apex"), NetConfig(core=CoreConfig(kind="lstm")))
