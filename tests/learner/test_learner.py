"""The learner's step: epochs, minibatches, several optimizers, targets, priorities, non-finite gradients."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from starling.algos.base import Algorithm, LearnSpec, Loss, LossPart, OptimizerSpec, TargetSpec, merge_losses
from starling.config.parts import OptimizerConfig
from starling.config.quantities import Quantity
from starling.learner.learner import LAG_EVERY, MAX_SKIPPED, DivergedError, Learner
from starling.state_io import pack, unpack
from starling.types import Keys, RunLength, Sample, Trajectory

ROWS, LENGTH = 6, 3


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 1, bias=False)
        self.b = nn.Linear(2, 1, bias=False)
        self.register_buffer("count", torch.zeros(()))


class Probe:
    """An algorithm that records the batches that its loss gets."""

    def __init__(self, **spec):
        self.spec, self.seen, self.scale = spec, [], 1.0

    def learning(self):
        return LearnSpec(**{"optimizers": {"all": OptimizerSpec(sgd())}, **self.spec})

    parts = Algorithm.parts

    def prepare(self, model, target_net, batch):
        return batch

    def loss(self, model, target_net, batch):
        self.seen.append(batch)
        x = batch.trajectory.obs[: batch.trajectory.length]
        y = model.a(x) * self.scale
        return Loss({"all": y.mean()}, lambda: {"y": y.mean()}, priorities=batch.trajectory.obs[0, :, 0])


def sgd(lr=0.1):
    return OptimizerConfig(name="SGD", args={"lr": lr})


def make_sample():
    """A sample whose obs are (row, time)."""
    obs = np.zeros((LENGTH + 1, ROWS, 2), np.float32)
    obs[..., 0] = np.arange(ROWS)
    obs[..., 1] = np.arange(LENGTH + 1)[:, None]
    flags = np.zeros((LENGTH, ROWS), bool)
    steps = Trajectory(
        obs=obs,
        first=np.zeros((LENGTH + 1, ROWS), bool),
        action=np.zeros((LENGTH, ROWS), np.int64),
        rewards={"extrinsic": np.zeros((LENGTH, ROWS), np.float32)},
        terminated=flags,
        truncated=flags,
        valid=~flags,
        extras={},
        carry={},
        policy_version=np.arange(ROWS),
    )
    ids = np.arange(ROWS)
    keys = Keys(ids * 0, ids * 0, ids, ids * 0)
    return Sample(steps, keys, np.full(ROWS, 0.1), np.full(ROWS, 10), ids * 0)


def learn(learner, sample=None, env_steps=0):
    return learner.step(sample or make_sample(), env_steps)


def make_learner(algorithm, model=None):
    torch.manual_seed(0)
    model = model or TwoHeads()
    return Learner(algorithm, model, seed=0, length=RunLength(10, None, 10))


@pytest.mark.parametrize("split", ["env", "step"])
def test_every_epoch_has_every_row_and_step_once(split):
    algorithm = Probe(epochs=3, minibatches=2, split=split)
    learn(make_learner(algorithm))
    assert len(algorithm.seen) == 6
    for epoch in range(3):
        parts = algorithm.seen[2 * epoch : 2 * epoch + 2]
        seen = [tuple(o) for b in parts for o in b.trajectory.obs[: b.trajectory.length].reshape(-1, 2).tolist()]
        assert sorted(seen) == [(float(r), float(t)) for r in range(ROWS) for t in range(LENGTH)]
        for part in parts:  # everything indexed by row still belongs to that row
            rows = part.trajectory.obs[0, :, 0]
            assert torch.equal(part.trajectory.policy_version.float(), rows)
    orders = {tuple(b.trajectory.policy_version.tolist()) for b in algorithm.seen}
    assert len(orders) > 2


def test_priorities_are_in_the_order_of_the_keys():
    learner = make_learner(Probe(minibatches=3))
    result = learn(learner)
    np.testing.assert_array_equal(result.keys.slot, np.arange(ROWS))
    np.testing.assert_array_equal(result.priorities, np.arange(ROWS))


def test_losses_of_two_optimizers_use_the_same_parameters():
    class Two(Probe):
        def loss(self, model, target_net, batch):
            x = batch.trajectory.obs[:-1]
            y, z = model.a(x).mean(), model.b(x).mean()
            return Loss({"a": (y * z).sum(), "b": (2 * y * z).sum()})

    spec = {
        "a": OptimizerSpec(sgd(), lambda m: m.a.parameters()),
        "b": OptimizerSpec(sgd(), lambda m: m.b.parameters()),
    }
    torch.manual_seed(0)
    model = TwoHeads()
    expected = copy.deepcopy(model)
    learner = make_learner(Two(optimizers=spec), model)
    learn(learner)
    x = torch.from_numpy(make_sample().trajectory.obs[:-1])
    y, z = expected.a(x).mean(), expected.b(x).mean()
    (grad_a,) = torch.autograd.grad(y * z, [expected.a.weight], retain_graph=True)
    (grad_b,) = torch.autograd.grad(2 * y * z, [expected.b.weight])
    torch.testing.assert_close(model.a.weight, expected.a.weight - 0.1 * grad_a)
    torch.testing.assert_close(model.b.weight, expected.b.weight - 0.1 * grad_b)


def test_target_network_is_copied_periodically_or_averaged_with_tau():
    hard = make_learner(Probe(target=TargetSpec(every=3)))
    start = hard.model.a.weight.clone()
    for _ in range(2):
        learn(hard)
    assert torch.equal(hard._target.a.weight, start)
    hard.model.count.fill_(5)
    learn(hard)
    assert torch.equal(hard._target.a.weight, hard.model.a.weight)
    assert hard._target.count == 5

    by_steps = make_learner(Probe(target=TargetSpec(every=Quantity(100, "env steps"))))
    copied = []
    for env_steps in (0, 60, 99, 100, 130, 310, 399, 400):
        learn(by_steps, env_steps=env_steps)
        if torch.equal(by_steps._target.a.weight, by_steps.model.a.weight):
            copied.append(env_steps)
        other = make_learner(Probe(target=TargetSpec(every=Quantity(100, "env steps"))))
        other.set_state(unpack(pack(by_steps.get_state())))
        by_steps = other
    assert copied == [100, 310, 400]

    soft = make_learner(Probe(target=TargetSpec(tau=0.25)))
    learn(soft)
    torch.testing.assert_close(soft._target.a.weight, 0.75 * start + 0.25 * soft.model.a.weight)


def test_non_finite_gradient_is_skipped_and_too_many_stop_the_run():
    algorithm = Probe()
    learner = make_learner(algorithm)
    before = learner.model.a.weight.clone()
    algorithm.scale = float("nan")
    learn(learner)
    assert torch.equal(learner.model.a.weight, before)
    assert learner.drain_metrics()["learner/skipped"] == 1
    algorithm.scale = 1.0
    learn(learner)
    assert not torch.equal(learner.model.a.weight, before)
    algorithm.scale = float("inf")
    for _ in range(MAX_SKIPPED - 1):
        learn(learner)
    with pytest.raises(DivergedError, match="not finite"):
        learn(learner)


PROBABILITIES = np.array([0.3, 0.6, 0.01, 0.04, 0.16, 0.25])


def weights_of(beta, table_size, source):
    """The importance weights of a batch whose rows were sampled with `PROBABILITIES`."""

    sample = replace(make_sample(), probability=PROBABILITIES, table_size=table_size, source=source)
    algorithm = Probe(importance_beta=beta)
    learner = make_learner(algorithm)
    learn(learner, sample, env_steps=5)  # halfway through the run
    return algorithm.seen[0].weight


def test_importance_weights_follow_the_exponent():
    """(N P)^-beta divided by the largest of the batch, with beta at the current progress: 0.4 + 0.6 / 2 halfway."""
    one_table = np.full(ROWS, 100), np.zeros(ROWS, np.int64)
    expected = (PROBABILITIES / 0.01) ** -0.7
    weight = weights_of(lambda progress: 0.4 + 0.6 * progress.fraction, *one_table)
    torch.testing.assert_close(weight, torch.from_numpy(expected).float())
    assert torch.equal(weights_of(lambda progress: 0.0, *one_table), torch.ones(ROWS))
    assert torch.equal(weights_of(None, *one_table), torch.ones(ROWS))


def test_importance_weights_are_normalized_per_table():
    """Rows from a queue keep their weight, however improbable the rows of a prioritized table beside them are."""
    sizes, sources = np.array([7, 7, 50, 50, 50, 50]), np.array([0, 0, 1, 1, 1, 1])
    smallest = [(PROBABILITIES * sizes)[sources == table].min() for table in (0, 1)]
    assert smallest[0] != pytest.approx(
        smallest[1]
    )  # otherwise normalizing over both tables would give the same weights
    weight = weights_of(lambda progress: 0.5, sizes, sources)
    torch.testing.assert_close(weight, torch.tensor([1.0, 0.5**0.5, 1.0, 0.5, 0.25, 0.2]))


def test_lag_of_a_batch_is_measured_in_updates_and_env_steps():
    """Rows were recorded by policy versions 0 to 5; there is a new version every 10 env steps."""
    learner = make_learner(Probe())
    for version in range(8):
        learner.drain_metrics()
        learn(learner, env_steps=10 * version + 10)
    metrics = learner.drain_metrics()
    assert metrics["learner/lag"] == 7 - 2.5
    assert metrics["learner/lag_steps"] == 80 - 25


def test_lag_is_measured_once_per_metrics_row_and_every_few_updates():
    learner = make_learner(Probe())
    for _ in range(2 * LAG_EVERY + 1):  # versions 0, 8 and 16
        learn(learner)
    assert learner.drain_metrics()["learner/lag"] == LAG_EVERY - 2.5
    learn(learner)
    learn(learner)
    assert learner.drain_metrics()["learner/lag"] == 2 * LAG_EVERY + 1 - 2.5


def test_restored_learner_continues_bitwise():
    spec = {"optimizers": {"all": OptimizerSpec(OptimizerConfig())}, "target": TargetSpec(tau=0.1), "minibatches": 2}
    one = make_learner(Probe(**spec))
    learn(one)
    state = copy.deepcopy(one.get_state())
    other = make_learner(Probe(**spec), TwoHeads())
    other.set_state(state)
    for learner in (one, other):
        learn(learner)
        learn(learner)
    mine, theirs = one.get_state(), other.get_state()
    assert torch.equal(mine["model"]["a.weight"], theirs["model"]["a.weight"])
    assert torch.equal(mine["target"]["a.weight"], theirs["target"]["a.weight"])
    assert mine["rng"] == theirs["rng"]
    assert one.drain_metrics() == other.drain_metrics()


class Pair(nn.Module):
    """A critic and an actor with one parameter each."""

    def __init__(self):
        super().__init__()
        self.critic, self.actor = nn.Parameter(torch.tensor([5.0])), nn.Parameter(torch.tensor([1.0]))


class SequentialUpdates(Probe):
    """The critic moves towards 3, and the actor towards the critic."""

    computed = ()

    def learning(self):
        optimizers = {
            "critic": OptimizerSpec(sgd(), lambda model: [model.critic]),
            "actor": OptimizerSpec(sgd(), lambda model: [model.actor], every=self.spec["every"]),
        }
        return LearnSpec(optimizers, sequential=self.spec["sequential"])

    def parts(self, model, target_net, batch):
        def critic():
            self.computed += ("critic",)
            return Loss({"critic": (model.critic - 3.0).square().sum()})

        def actor():
            self.computed += ("actor",)
            return Loss({"actor": (model.actor - model.critic).square().sum()})

        if self.spec["whole"]:  # one loss for both optimizers
            return (LossPart(lambda: merge_losses([critic(), actor()])),)
        return LossPart(critic, ("critic",)), LossPart(actor, ("actor",))


@pytest.mark.parametrize(("sequential", "whole"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_losses_are_applied_sequentially_and_with_delays_as_configured(sequential, whole, every):
    algorithm = SequentialUpdates(sequential=sequential, whole=whole, every=every)
    learner = Learner(algorithm, Pair(), seed=0, length=RunLength(100, None, 100))
    critic, actor, computed = 5.0, 1.0, ()
    for update in range(1, 8):
        learn(learner)
        old, critic = critic, critic - 0.1 * 2 * (critic - 3.0)
        due = update % every == 0
        if due:
            actor -= 0.1 * 2 * (actor - (critic if sequential else old))
        computed += ("critic", "actor") if due or whole else ("critic",)
        assert learner.model.critic.item() == pytest.approx(critic)
        assert learner.model.actor.item() == pytest.approx(actor)
    assert algorithm.computed == computed


def test_parameter_of_two_optimizers_is_rejected():
    spec = {"a": OptimizerSpec(sgd(), lambda m: m.a.parameters()), "all": OptimizerSpec(sgd())}
    with pytest.raises(ValueError, match="optimizers 'a' and 'all' have a parameter in common"):
        make_learner(Probe(optimizers=spec), TwoHeads())


def test_update_without_any_optimizer_step_is_rejected():
    with pytest.raises(ValueError, match="at least one optimizer must step in every update"):
        LearnSpec({"all": OptimizerSpec(sgd(), every=2)})
    with pytest.raises(ValueError, match="at least 1"):
        LearnSpec({"all": OptimizerSpec(sgd(), every=0)})
