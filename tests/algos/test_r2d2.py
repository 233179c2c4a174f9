"""R2D2's loss compared with the papers written as loops, its special cases, acting, and initial priorities."""

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces
from support.policy_batches import env_spec
from support.sequence_batches import BURN_IN, LENGTH, ROWS, STEPS, make, make_batch, slow_losses, slow_q, slow_streams
from support.slow_losses import assert_losses_match

from starling import tree
from starling.algos.base import ActInput
from starling.algos.r2d2.config import R2D2Config
from starling.algos.r2d2.r2d2 import R2D2
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.ops.explore import ladder
from starling.types import EnvSpec, Progress, StreamSpec


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"retrace": 0.9, "eval_epsilon": 0.3},
        {"state": "zero"},
        {"rescale": False, "double": False},
        {"retrace": 0.9, "rescale": False, "dueling": False},
        {"burn_in": 0},
        {"n_step": 20, "huber": 0.5},
    ],
    ids=str,
)
def test_loss_gradient_and_priorities_match_the_papers(core, settings):
    algorithm, model, target = make(core, **settings)
    assert_matches_the_papers(algorithm, model, target, make_batch(model))


def assert_matches_the_papers(algorithm, model, target, batch):
    slow, priorities = slow_losses(
        model, target, batch, algorithm.config, slow_streams([StreamSpec(discount=0.9)], batch.trajectory)
    )
    loss = assert_losses_match(algorithm, model, target, batch, {"q": slow["extrinsic"]})
    torch.testing.assert_close(loss.priorities, priorities)


@pytest.mark.parametrize("begins", [(), range(ROWS)], ids=["none begins an episode", "all begin an episode"])
def test_no_gradient_flows_through_burn_in_whichever_sequences_begin_an_episode(begins):
    algorithm, model, target = make()
    assert_matches_the_papers(algorithm, model, target, make_batch(model, begins=begins))


def test_burn_in_is_not_trained_except_in_sequences_that_begin_an_episode():
    algorithm, model, target = make()
    batch = make_batch(model)
    trained = [n if b in (1, 2, 6) else max(0, n - BURN_IN) for b, n in enumerate(STEPS)]
    assert algorithm._loss_mask(batch.trajectory).sum(0).tolist() == trained
    assert (algorithm.loss(model, target, batch).priorities > 0).tolist() == [n > 0 for n in trained]


def test_stored_state_is_used_by_both_networks_and_carried_through_burn_in():
    """Other stored states change exactly the sequences that do not begin an episode."""
    algorithm, model, target = make()
    batch = make_batch(model)
    state = {name: leaf + 1 for name, leaf in batch.trajectory.carry["state"].items()}
    other = replace(batch, trajectory=replace(batch.trajectory, carry={**batch.trajectory.carry, "state": state}))
    same = algorithm.loss(model, target, batch).priorities == algorithm.loss(model, target, other).priorities
    assert same.tolist() == [b in (1, 2, 5, 6) for b in range(ROWS)]  # 5: no step is trained, its priority is 0


def test_one_step_without_burn_in_and_rescaling_is_double_q_learning():
    algorithm, model, target = make(burn_in=0, unroll=1, period=1, n_step=1, rescale=False, huber=100.0)
    batch = make_batch(model, length=1)
    steps = batch.trajectory
    q, q_target = (
        torch.stack([torch.stack(slow_q(net, steps, b, algorithm.config)["extrinsic"]) for b in range(ROWS)], dim=1)
        for net in (model, target)
    )
    discount = torch.where(steps.terminated, 0.0, 0.9)[0]
    bootstrap = torch.stack([q_target[1, b, q[1, b].argmax()] for b in range(ROWS)])
    taken = torch.stack([q[0, b, steps.action[0, b]] for b in range(ROWS)])
    error = steps.rewards["extrinsic"][0] + discount * bootstrap - taken
    loss = algorithm.loss(model, target, batch)
    torch.testing.assert_close(loss.losses["q"], (batch.weight * error.square() / 2).mean())
    torch.testing.assert_close(loss.priorities, error.abs())


@pytest.mark.parametrize("settings", [{}, {"retrace": 0.9}], ids=str)
def test_initial_priorities_equal_the_learners_with_the_same_weights(settings):
    algorithm, model, _ = make(**settings)
    batch = make_batch(model)
    steps = batch.trajectory
    with torch.no_grad():
        seen, _, _ = model.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry)
    acted = replace(steps, extras={**steps.extras, "q": seen})
    first = algorithm.priority(tree.to_numpy(acted))
    torch.testing.assert_close(torch.from_numpy(first), algorithm.loss(model, model, batch).priorities)


def test_delta_q_is_0_for_unchanged_states_and_matches_the_paper_for_others():
    algorithm, model, target = make()
    batch = make_batch(model)
    steps = batch.trajectory
    with torch.no_grad():
        seen, features, _ = model.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry)
        other = model.decode(steps.extras["features"])["extrinsic"]
    drifts = {"delta_q_first": [], "delta_q_last": []}
    for b, n in enumerate(STEPS):
        if n > BURN_IN:
            q = seen["extrinsic"][:, b]
            trained = q[0 if steps.first[0, b] else BURN_IN : n]
            for name, t in (("delta_q_first", BURN_IN), ("delta_q_last", n - 1)):
                drifts[name].append((q[t] - other[t, b]).norm() / trained.max().abs())
    metrics = algorithm.loss(model, target, batch).metrics()
    for name, values in drifts.items():
        torch.testing.assert_close(metrics[name], torch.stack(values).mean())
    own = replace(batch, trajectory=replace(steps, extras={**steps.extras, "features": features}))
    metrics = algorithm.loss(model, target, own).metrics()
    assert max(metrics["delta_q_first"], metrics["delta_q_last"]) < 1e-5


def test_delta_q_is_omitted_for_short_sequences_or_if_disabled():
    algorithm, model, target = make()
    batch = make_batch(model)
    short = replace(batch.trajectory, valid=batch.trajectory.valid & (torch.arange(LENGTH) < BURN_IN).unsqueeze(1))
    for loss in (
        algorithm.loss(model, target, replace(batch, trajectory=short)),
        make(delta_q=False)[0].loss(model, target, batch),
    ):
        assert sorted(loss.metrics()) == ["q", "q_values"]


def act_input(model, explore):
    env_index = torch.arange(4)
    return ActInput(
        obs=torch.randn(4, 5),
        first=torch.tensor([True, False, False, False]),
        carry=model.initial_carry(4),
        env_index=env_index,
        num_envs=8,
        progress=Progress(),
        explore=explore,
        noise=lambda n: torch.rand(4, n, generator=torch.Generator().manual_seed(5)),
    )


def test_acting_records_q_values_features_and_action_probabilities_for_retrace():
    algorithm, model, _ = make(retrace=0.9)
    seen = act_input(model, explore=True)
    output = algorithm.act(model, seen)
    q = output.extras["q"]["extrinsic"]
    torch.testing.assert_close(model.decode(output.extras["features"])["extrinsic"], q)
    epsilon = ladder(seen.env_index, 8)
    for b in range(4):
        greedy = output.action[b] == q[b].argmax()
        assert output.extras["mu"][b].item() == pytest.approx(epsilon[b].item() / 3 + (1 - epsilon[b].item()) * greedy)
    assert sorted(output.state) == ["c", "h"]
    assert sorted(make(delta_q=False)[0].act(model, seen).extras) == ["q"]


def test_evaluation_is_greedy():
    algorithm, model, _ = make()
    output = algorithm.act(model, act_input(model, explore=False))
    assert output.action.equal(output.extras["q"]["extrinsic"].argmax(-1))


def test_sequences_overlap_and_those_shorter_than_the_burn_in_are_kept():
    (table,) = make(codec="zstd")[0].tables(num_envs=4)
    assert (table.length, table.period, table.burn_in, table.sampler) == (LENGTH, 2, BURN_IN, "prioritized")
    assert (table.priority_exponent, table.codec) == (0.9, "zstd")


def test_invalid_settings_are_one_line_errors():
    with pytest.raises(UserError, match=r"r2d2 is recurrent: set net.core.kind=lstm or gru"):
        R2D2(R2D2Config(name="r2d2"), NetConfig())
    with pytest.raises(ValueError, match="period=6 would skip steps; set it to at most unroll=5"):
        R2D2Config(name="r2d2", unroll=5, period=6)
    algorithm, _, _ = make()
    box = EnvSpec("arm", env_spec().observation, spaces.Box(-1, 1, (2,)))
    with pytest.raises(UserError, match="r2d2 needs a Discrete action space; arm has Box"):
        algorithm.build(box, algorithm.streams())
