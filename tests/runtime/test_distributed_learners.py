"""Several learners make the same updates as one with the whole batch, over the loopback interface only."""

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
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.learner.group import RankLostError
from starling.learner.learner import CHECKED_EVERY, DivergedError, Learner
from starling.runtime import distributed_learners
from starling.runtime.distributed_learners import LONGEST, DistributedLearners, RendezvousInfo
from starling.types import Keys, RunLength, Sample, Trajectory

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


def join_group(
    folder: Path, rank: int, size: int, timeout: float = TIMEOUT, name: str = "meeting"
) -> DistributedLearners:
    return DistributedLearners(RendezvousInfo(dist.FileStore(str(folder / name), size), rank, size, timeout), Usage())


def run_ranks(folder: Path, size: int, work) -> list:
    """The results of `work(rank, ranks)` in each of `size` ranks, one thread per rank."""
    with ThreadPoolExecutor(size) as threads:
        return [*threads.map(lambda rank: work(rank, join_group(folder, rank, size)), range(size))]


@pytest.mark.parametrize("agent", AGENTS)
def test_group_of_one_learner_makes_bitwise_the_same_updates(tmp_path, agent):
    preset, settings = AGENTS[agent]
    states = []
    for shared in (False, True):
        runtime = build_runtime(RunPlan.from_config(load(preset, [*TOY, *settings])))
        if shared:
            runtime.learner.join(join_group(tmp_path, 0, 1), 0)
        for _ in runtime.run():
            if runtime.updates >= 12:
                break
        states.append(runtime.learner.get_state())
        runtime.close()
    single, path = (
        dict(tree.items({key: state[key] for key in ("model", "target", "optimizers")})) for state in states
    )
    assert single.keys() == path.keys()
    for name, value in single.items():
        assert torch.equal(value, path[name]) if torch.is_tensor(value) else value == path[name], name


class TwoLayers(nn.Module):
    """Two linear layers with separate optimizers, and statistics of the inputs."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(3))


class Probe:
    """Two importance-weighted losses: means over the rows, or sums."""

    def __init__(self, summed):
        self.summed, self.weights = summed, []

    def learning(self):
        config = OptimizerConfig(name="SGD", args={"lr": 0.1}, clip_norm=0.5)
        parts = {"a": lambda m: m.a.parameters(), "b": lambda m: m.b.parameters()}
        optimizers = {name: OptimizerSpec(config, part, self.summed) for name, part in parts.items()}
        return LearnSpec(optimizers, importance_beta=lambda progress: 0.7)

    parts = Algorithm.parts

    def prepare(self, model, target_net, batch):
        model.count += batch.trajectory.batch_size
        model.total += batch.trajectory.obs[0].sum(0)
        return batch

    def loss(self, model, target_net, batch):
        self.weights.append(batch.weight)
        x = batch.trajectory.obs[0]
        a, b = model.a(x).squeeze(-1), model.b(x).squeeze(-1)
        row_losses = {"a": batch.weight * (a - b.detach()).square(), "b": batch.weight * (b - a.detach() - 1).square()}
        return Loss({name: row.sum() if self.summed else row.mean() for name, row in row_losses.items()})


class Batches:
    """Batches of 8 rows, split between ranks; a batch that was not used is offered again."""

    def __init__(self, rank=0, size=1, batches=100):
        self._rng, self._part = np.random.default_rng(3), slice(rank * 8 // size, (rank + 1) * 8 // size)
        self.env_steps, self.batches_left, self._offered = 100 // size, batches, None

    def learn(self, learner):
        self._offered = self._offered or self._sample()
        result = learner.step(self._offered, self.env_steps)
        if result is not None:
            self._offered = None
        return result is not None

    def _sample(self):
        if not self.batches_left:
            return None
        self.batches_left -= 1
        obs = self._rng.normal(size=(2, 8, 3)).astype(np.float32)[:, self._part]
        probability = self._rng.uniform(0.01, 0.2, 8)[self._part]
        n = obs.shape[1]
        flags, ids = np.zeros((1, n), bool), np.zeros(n, np.int64)
        steps = Trajectory(obs, np.zeros((2, n), bool), flags, {}, flags, flags, ~flags, {}, {}, ids)
        return Sample(steps, Keys(ids, ids, ids, ids), probability, np.full(n, 10), ids)


INITIAL_MODEL = TwoLayers()


def make_learner(algorithm):
    return Learner(algorithm, copy.deepcopy(INITIAL_MODEL), seed=0, length=RunLength(1000, None, 10))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("summed", [False, True])
def test_ranks_with_parts_of_a_batch_learn_the_same_as_one_with_the_whole(tmp_path, size, summed):
    single, batches = make_learner(whole := Probe(summed)), Batches()
    for _ in range(5):
        assert batches.learn(single)

    def learn(rank, ranks):
        learner, batches = make_learner(probe := Probe(summed)), Batches(rank, size)
        learner.join(ranks, rank)
        for _ in range(5):
            assert batches.learn(learner)
        return learner, torch.stack(probe.weights, dim=1)  # [b, steps]

    ranks = run_ranks(tmp_path, size, learn)
    for learner, _ in ranks:
        assert learner.progress(0).env_steps == 100
        for name, value in learner.model.state_dict().items():
            torch.testing.assert_close(value, single.model.state_dict()[name], rtol=1e-5, atol=1e-6)
            assert torch.equal(value, ranks[0][0].model.state_dict()[name]), "bitwise equal in all ranks"
    weights = torch.cat([weight for _, weight in ranks])
    torch.testing.assert_close(weights, torch.stack(whole.weights, dim=1))
    assert (weights.amax(0) == 1).all(), "the largest weight of the whole batch is 1"


def test_no_rank_learns_before_all_have_a_batch(tmp_path):
    def learn(rank, ranks):
        batches = Batches(rank, 2, batches=1 if rank else 0)
        learner = make_learner(Probe(False))
        learner.join(ranks, rank)
        waited = [batches.learn(learner) for _ in range(3)]
        batches.batches_left += 1
        return waited, batches.learn(learner), learner.updates

    assert run_ranks(tmp_path, 2, learn) == [([False] * 3, True, 1)] * 2


def test_random_numbers_differ_between_ranks_and_states_are_broadcast(tmp_path):
    def draw_numbers(rank, ranks):
        learner = make_learner(Probe(False))
        learner.join(ranks, rank)
        learner._reseed()
        content = ranks.broadcast(b"starling" * 1000 if rank == 1 else None, source=1)
        return torch.rand(1, generator=learner._generator).item(), learner._rng.random(), content

    (x0, y0, c0), (x1, y1, c1) = run_ranks(tmp_path, 2, draw_numbers)
    assert x0 != x1
    assert y0 != y1
    assert c0 == c1 == b"starling" * 1000


def test_diverging_weights_are_detected(tmp_path):
    def learn(rank, ranks):
        learner, batches = make_learner(Probe(False)), Batches(rank, 2)
        learner.join(ranks, rank)
        learner.updates = CHECKED_EVERY - 2
        batches.learn(learner)
        if rank:
            with torch.no_grad():
                learner.model.a.weight[0, 0] += 1e-6
        with pytest.raises(DivergedError, match="weights differ"):
            batches.learn(learner)

    run_ranks(tmp_path, 2, learn)


def test_lost_rank_is_detected_at_once_and_the_learner_is_unchanged(tmp_path):
    has_left = threading.Event()

    def learn(rank, ranks):
        learner, batches = make_learner(Probe(False)), Batches(rank, 2)
        learner.join(ranks, rank)
        batches.learn(learner)
        if rank:
            learner.join(None, 1)
            del ranks, learner
            has_left.set()
            return
        before = copy.deepcopy(learner.model.state_dict())
        del ranks
        assert has_left.wait(TIMEOUT)
        with pytest.raises(RankLostError) as lost:
            batches.learn(learner)
        assert not lost.value.late
        assert learner.position == (1, 0)
        assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())
        return

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(lambda rank: learn(rank, join_group(tmp_path, rank, 2)), range(2))] == [None, None]


def test_missing_gradient_times_out_as_late(tmp_path):
    done = threading.Event()

    def learn(rank):
        ranks = join_group(tmp_path, rank, 2)
        ranks._timeout = timedelta(seconds=1)  # joining takes longer than 1 s on a busy machine
        if rank:
            assert done.wait(TIMEOUT)
            return
        with pytest.raises(RankLostError) as lost:
            ranks.all_reduce_sum(torch.ones(3))
        done.set()
        assert lost.value.late

    with ThreadPoolExecutor(2) as threads:
        [*threads.map(learn, range(2))]


def test_timeout_for_a_batch_is_longer_than_for_a_gradient(tmp_path):
    def wait(rank):
        ranks = join_group(tmp_path, rank, 2)
        ranks._timeout = timedelta(seconds=1)
        if rank:
            time.sleep(2.5)
        return ranks.sync_env_steps(True, 1)

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(wait, range(2))] == [2, 2]


class NcclGroup:
    """A group of one on a GPU; its operations take `seconds`, and it ends as nccl does when the host loses patience."""

    def __init__(self, seconds, error=None):
        self.seconds, self.error, self.aborted = seconds, error, 0

    def allreduce(self, tensors, options):
        assert options.timeout >= LONGEST, "else the watchdog of nccl ends the process"
        return NcclWork(self)

    def abort(self):
        self.aborted += 1


class NcclWork:
    """`wait` without a timeout does not wait for the device; with one it does, and aborts the group when it is over."""

    def __init__(self, group):
        self._group, self._end = group, time.monotonic() + group.seconds

    def is_completed(self):
        return time.monotonic() >= self._end

    def wait(self, timeout=None):
        if timeout is not None and not self.is_completed():
            time.sleep(min(timeout.total_seconds(), max(0.0, self._end - time.monotonic())))
            if not self.is_completed():
                self._group.abort()
                raise RuntimeError("Work timed out in blocking wait (TORCH_NCCL_BLOCKING_WAIT=1).")
        if self._group.error is not None:
            raise RuntimeError(self._group.error)


def gpu_rank(folder, monkeypatch, group, timeout=TIMEOUT):
    monkeypatch.setattr(distributed_learners, "_nccl", lambda rendezvous: group)
    store = dist.FileStore(str(folder / "meeting"), 1)
    return DistributedLearners(RendezvousInfo(store, 0, 1, timeout), Usage(), nccl=True)


def test_rank_that_is_a_little_late_does_not_end_a_group_of_gpus(tmp_path, monkeypatch):
    ranks = gpu_rank(tmp_path, monkeypatch, group := NcclGroup(seconds=0.3))
    started = ranks._usage.cells[0]
    ranks.all_reduce_sum(torch.ones(3))
    assert group.aborted == 0
    assert ranks._usage.cells[0] - started >= 0.3e9, "it gave signs of life"


def test_group_of_gpus_is_aborted_once_the_limit_is_over(tmp_path, monkeypatch):
    ranks = gpu_rank(tmp_path, monkeypatch, group := NcclGroup(seconds=1e6), timeout=0.4)
    with pytest.raises(RankLostError, match=r"did not answer within 0\.4 s") as lost:
        ranks.all_reduce_sum(torch.ones(3))
    assert lost.value.late
    assert group.aborted == 1


def test_error_of_a_collective_is_told_in_one_line(tmp_path, monkeypatch):
    ranks = gpu_rank(tmp_path, monkeypatch, NcclGroup(seconds=0.0, error="NCCL error: remote process exited\nat x.cpp"))
    with pytest.raises(RankLostError, match=r"^NCCL error: remote process exited$") as lost:
        ranks.all_reduce_sum(torch.ones(3))
    assert not lost.value.late


def test_joining_without_the_other_ranks_times_out(tmp_path):
    with pytest.raises(RankLostError, match="did not connect"):
        join_group(tmp_path, 0, 2, timeout=1.0)


def listening() -> set[tuple[str, str]]:
    """Listening sockets of this process: address in hexadecimal as in /proc, and inode."""
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


def test_ranks_listen_only_on_loopback(tmp_path):
    others = listening()  # of earlier tests
    found = set().union(*run_ranks(tmp_path, 2, lambda rank, ranks: (ranks.sync_env_steps(True, 0), listening())[1]))
    assert {address for address, _ in found - others} == {"0100007F"}
