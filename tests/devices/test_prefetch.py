"""The next batch is copied to the device beside the computations of the present one."""

import copy

import pytest
import torch
from support.agents import AGENTS, SMALL

from starling import tree
from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.learner.prefetch import SLOTS, Prefetch

FIXED = ["runtime=inline", "compile=false", "precision=float32", "algo.optimizer.args.lr=0.01"]


def learner_and_samples(agent, device, count):
    """A learner, and batches that an inline run of this agent would learn from."""
    preset, settings = AGENTS[agent]
    runtime = build_runtime(RunPlan.from_config(load(preset, [*SMALL, *settings, *FIXED, f"device={device}"])))
    samples, learner = [], runtime.learner
    original = learner.step

    def keep(sample, env_steps, *rest):
        if sample is not None:
            samples.append(copy.deepcopy(sample))
        return original(sample, env_steps, *rest)

    learner.step = keep
    for _ in runtime.run():
        if len(samples) >= count:
            learner.step = original
            return learner, samples[:count]
    raise AssertionError


@pytest.mark.parametrize("agent", ["dqn", "r2d2", "ppo"])
def test_prefetched_batches_give_the_same_weights(agent, mock_device):
    learner, samples = learner_and_samples(agent, "mock", 4)
    begin = copy.deepcopy(learner.get_state())
    weights, counted = [], []
    for ahead in (False, True):
        learner.set_state(copy.deepcopy(begin))
        for number, sample in enumerate(samples):
            following = samples[number + 1] if number + 1 < len(samples) else None
            with mock_device.counting() as counts:
                learner.step(sample, 10_000, (lambda found=following: found) if ahead else lambda: None)
            counted.append(counts.totals)
        weights.append({name: value.cpu() for name, value in learner.model.state_dict().items()})
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name
    small = int(agent != "dqn")  # importance weights, or the order of minibatches, which are not prefetched
    assert counted == [(1, 1, 1)] * 4 + [(1, 2, 1), (1, small + 1, 1), (1, small + 1, 1), (1, small, 1)]


def test_kernels_wait_for_the_copy_and_the_host_only_for_a_slot_that_is_still_being_read(mock_device):
    _, samples = learner_and_samples("ppo", "mock", SLOTS + 2)
    prefetch = Prefetch(torch.device("mock", 0))
    pending = [(sample.trajectory, sample.source) for sample in samples]
    with mock_device.counting() as counts:
        for sample, arrays in zip(samples[:SLOTS], pending, strict=False):
            prefetch.begin(sample, arrays)
    assert counts.totals == (0, SLOTS, 0)
    assert prefetch.take(samples[0]) is None, "only the last one is kept"
    with mock_device.counting() as counts:
        prefetch.begin(samples[SLOTS], pending[SLOTS])  # into the first slot, whose copy nobody has waited for
        used = prefetch._next.data.used_by
        found = prefetch.take(samples[SLOTS])
    assert counts.totals == (1, 1, 0)
    for (name, here), (_, there) in zip(tree.items(pending[SLOTS]), tree.items(found), strict=True):
        assert torch.equal(there.cpu(), torch.from_numpy(here)), name
    assert used == [torch.get_device_module("mock").current_stream()]
    assert prefetch.take(samples[SLOTS]) is None, "once"
