"""Several learners are one: the same updates as one alone has with the whole batch; over loopback only."""

import copy
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.driving import TIMEOUT
from torch import nn

from starling import tree
from starling.actor.usage import Usage
from starling.algos.base import Algorithm, LearnSpec, Loss, OptimizerSpec
from starling.config.load import load
from starling.config.parts import OptimizerConfig
from starling.launch.build import build_runtime
from starling.launch.plan import RunPlan
from starling.learner.group import RankLostError
from starling.learner.learner import CHECKED_EVERY, DivergedError, Learner
from starling.runtime.distributed_learners import DistributedLearners, RendezvousInfo
from starling.types import Keys, Sample, Trajectory

CPU = torch.device("cpu")
TOY = ["env.id=toy/identity", "env.num=4", "net.torso.hidden=[16]", "stop.return=null"]
REPLAY = ["algo.learning_starts=40", "algo.fragment=4", "algo.updates_per_step=0.25"]
SEQUENCES = ["algo.burn_in=2", "algo.unroll=4", "algo.period=2", "algo.learning_starts=20", "env.args={}"]
AGENTS = {
    "dqn": ("dqn-cartpole", REPLAY),
    "dqn prioritized": ("dqn-cartpole", [*REPLAY, "algo.prioritized.alpha=0.6"]),
    "ppo": ("ppo-cartpole", ["algo.rollout=8"]),
    "impala": ("impala-cartpole", ["algo.batch=4", "algo.unroll=5"]),
    "r2d2": ("r2d2-memory", [*REPLAY, *SEQUENCES]),
}


def meet(folder: Path, rank: int, size: int, timeout: float = TIMEOUT, name: str = "meeting") -> DistributedLearners:
    return DistributedLearners(
        RendezvousInfo(dist.FileStore(str(folder / name), size), rank, size, timeout), CPU, Usage()
    )


def together(folder: Path, size: int, work) -> list:
    """What `work(rank, ranks)` gives in each of `size` ranks, a thread each."""
    with ThreadPoolExecutor(size) as threads:
        return [*threads.map(lambda rank: work(rank, meet(folder, rank, size)), range(size))]


@pytest.mark.parametrize("agent", AGENTS)
def test_one_learner_through_this_path_has_the_same_updates_to_the_bit(tmp_path, agent):
    preset, settings = AGENTS[agent]
    states = []
    for shared in (False, True):
        runtime = build_runtime(RunPlan.from_config(load(preset, [*TOY, *settings])))
        if shared:
            runtime.learner.join(meet(tmp_path, 0, 1), 0)
        for _ in runtime.run():
            if runtime.updates >= 12:
                break
        states.append(runtime.learner.get_state())
        runtime.close()
    alone, path = (dict(tree.items({key: state[key] for key in ("model", "target", "optimizers")})) for state in states)
    assert alone.keys() == path.keys()
    for name, value in alone.items():
        assert torch.equal(value, path[name]) if torch.is_tensor(value) else value == path[name], name


class Counted(nn.Module):
    """Two parts with an optimizer each, and statistics of what was seen."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(3))


class Probe:
    """Two losses, weighted by importance; means over the rows, or sums."""

    def __init__(self, summed):
        self.summed, self.weights = summed, []

    def learning(self):
        config = OptimizerConfig(name="SGD", args={"lr": 0.1}, clip_norm=0.5)
        parts = {"a": lambda m: m.a.parameters(), "b": lambda m: m.b.parameters()}
        optimizers = {name: OptimizerSpec(config, part, self.summed) for name, part in parts.items()}
        return LearnSpec(optimizers, importance_exponent=lambda progress: 0.7)

    parts = Algorithm.parts

    def prepare(self, model, target_net, batch):
        model.count += batch.trajectory.rows
        model.total += batch.trajectory.obs[0].sum(0)
        return batch

    def loss(self, model, target_net, batch):
        self.weights.append(batch.weight)
        x = batch.trajectory.obs[0]
        a, b = model.a(x).squeeze(-1), model.b(x).squeeze(-1)
        rows = {"a": batch.weight * (a - b.detach()).square(), "b": batch.weight * (b - a.detach() - 1).square()}
        return Loss({name: row.sum() if self.summed else row.mean() for name, row in rows.items()})


class Rows:
    """Batches of 8 rows, of which each rank has its part; a batch that was not learned from is offered again."""

    def __init__(self, rank=0, size=1, batches=100):
        self._rng, self._part = np.random.default_rng(3), slice(rank * 8 // size, (rank + 1) * 8 // size)
        self.env_steps, self.left, self._offered = 100 // size, batches, None

    def learn(self, learner):
        self._offered = self._offered or self._sample()
        result = learner.step(self._offered, self.env_steps)
        if result is not None:
            self._offered = None
        return result is not None

    def _sample(self):
        if not self.left:
            return None
        self.left -= 1
        obs = self._rng.normal(size=(2, 8, 3)).astype(np.float32)[:, self._part]
        probability = self._rng.uniform(0.01, 0.2, 8)[self._part]
        n = obs.shape[1]
        flags, ids = np.zeros((1, n), bool), np.zeros(n, np.int64)
        steps = Trajectory(obs, np.zeros((2, n), bool), flags, {}, flags, flags, ~flags, {}, {}, ids)
        return Sample(steps, Keys(ids, ids, ids, ids), probability, np.full(n, 10), ids)


BORN = Counted()


def a_learner(algorithm):
    return Learner(algorithm, copy.deepcopy(BORN), seed=0, planned_env_steps=1000, planned_updates=10)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("summed", [False, True])
def test_ranks_with_a_part_of_the_batch_each_learn_what_one_learns_from_the_whole(tmp_path, size, summed):
    alone, rows = a_learner(whole := Probe(summed)), Rows()
    for _ in range(5):
        assert rows.learn(alone)

    def learn(rank, ranks):
        learner, rows = a_learner(probe := Probe(summed)), Rows(rank, size)
        learner.join(ranks, rank)
        for _ in range(5):
            assert rows.learn(learner)
        return learner, torch.stack(probe.weights, dim=1)  # [b, steps]

    ranks = together(tmp_path, size, learn)
    for learner, _ in ranks:
        assert learner.progress(0).env_steps == 100
        for name, value in learner.model.state_dict().items():
            torch.testing.assert_close(value, alone.model.state_dict()[name], rtol=1e-5, atol=1e-6)
            assert torch.equal(value, ranks[0][0].model.state_dict()[name]), "the same bits in all ranks"
    weights = torch.cat([weight for _, weight in ranks])
    torch.testing.assert_close(weights, torch.stack(whole.weights, dim=1))
    assert (weights.amax(0) == 1).all(), "the largest is 1 in the batch of all"


def test_nobody_learns_before_all_have_a_batch(tmp_path):
    def learn(rank, ranks):
        rows = Rows(rank, 2, batches=1 if rank else 0)
        learner = a_learner(Probe(False))
        learner.join(ranks, rank)
        waited = [rows.learn(learner) for _ in range(3)]
        rows.left += 1
        return waited, rows.learn(learner), learner.updates

    assert together(tmp_path, 2, learn) == [([False] * 3, True, 1)] * 2


def test_random_numbers_differ_between_ranks_and_states_are_handed_out(tmp_path):
    def draw_numbers(rank, ranks):
        learner = a_learner(Probe(False))
        learner.join(ranks, rank)
        content = ranks.broadcast(b"starling" * 1000 if rank == 1 else None, source=1)
        return torch.rand(1, generator=learner._generator).item(), learner._rng.random(), content

    (x0, y0, c0), (x1, y1, c1) = together(tmp_path, 2, draw_numbers)
    assert x0 != x1
    assert y0 != y1
    assert c0 == c1 == b"starling" * 1000


def test_weights_that_differ_are_found_out(tmp_path):
    def learn(rank, ranks):
        learner, rows = a_learner(Probe(False)), Rows(rank, 2)
        learner.join(ranks, rank)
        learner.updates = CHECKED_EVERY - 2
        rows.learn(learner)
        if rank:
            with torch.no_grad():
                learner.model.a.weight[0, 0] += 1e-6
        with pytest.raises(DivergedError, match="weights differ"):
            rows.learn(learner)

    together(tmp_path, 2, learn)


def test_a_rank_that_goes_is_noticed_at_once_and_leaves_the_learner_as_it_was(tmp_path):
    left = threading.Event()

    def learn(rank, ranks):
        learner, rows = a_learner(Probe(False)), Rows(rank, 2)
        learner.join(ranks, rank)
        rows.learn(learner)
        if rank:
            learner.join(None, 1)
            del ranks, learner
            left.set()
            return
        before = copy.deepcopy(learner.model.state_dict())
        del ranks
        assert left.wait(TIMEOUT)
        with pytest.raises(RankLostError) as lost:
            rows.learn(learner)
        assert not lost.value.late
        assert learner.standing == (1, 0)
        assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())
        return

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(lambda rank: learn(rank, meet(tmp_path, rank, 2)), range(2))] == [None, None]


def test_a_gradient_that_does_not_come_is_late(tmp_path):
    done = threading.Event()

    def learn(rank):
        ranks = meet(tmp_path, rank, 2)
        ranks._timeout = timedelta(seconds=1)  # ranks on a busy machine take longer to meet
        if rank:
            assert done.wait(TIMEOUT)
            return
        with pytest.raises(RankLostError) as lost:
            ranks.all_reduce_sum(torch.ones(3))
        done.set()
        assert lost.value.late

    with ThreadPoolExecutor(2) as threads:
        [*threads.map(learn, range(2))]


def test_who_waits_for_a_batch_waits_longer_than_for_a_gradient(tmp_path):
    def wait(rank):
        ranks = meet(tmp_path, rank, 2)
        ranks._timeout = timedelta(seconds=1)
        if rank:
            time.sleep(2.5)
        return ranks.sync_env_steps(True, 1)

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(wait, range(2))] == [2, 2]


def test_what_is_done_just_after_a_wait_for_it_ended_is_done(tmp_path):
    """The work of torch's own, but for a wait that ends a moment too early."""

    class Hasty:
        def __init__(self, work):
            self._work = work
            self.is_completed, self.times = work.is_completed, 0

        def wait(self, timeout):
            self._work.wait()
            self.times += 1
            if self.times == 1:
                raise RuntimeError("Operation timed out!")

    def work(rank, ranks):
        told = torch.ones(2)
        ranks._wait(Hasty(ranks._talk.allreduce([told])), timedelta(seconds=5))
        return told.tolist()

    assert together(tmp_path, 2, work) == [[2, 2], [2, 2]]


def test_ranks_that_do_not_come_are_not_waited_for_for_ever(tmp_path):
    with pytest.raises(RankLostError, match="did not meet"):
        meet(tmp_path, 0, 2, timeout=1.0)


def listening() -> set[tuple[str, str]]:
    """Where this process listens: addresses in hexadecimal as /proc gives them, each with its socket."""
    mine = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    found = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.add((fields[1].split(":")[0], fields[9]))
    return found


def test_nobody_outside_this_machine_can_reach_a_rank(tmp_path):
    others = listening()  # of tests before this one
    found = set().union(*together(tmp_path, 2, lambda rank, ranks: (ranks.sync_env_steps(True, 0), listening())[1]))
    assert {address for address, _ in found - others} == {"0100007F"}
