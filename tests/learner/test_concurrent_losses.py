"""Parts of a loss at the same time: the same results to the bit, and no lost errors."""

import subprocess
import sys
import threading

import pytest
import torch

from starling.config.load import load
from starling.launch.build import build_runtime
from starling.launch.plan import RunPlan, parts_abreast, plan_threads, torch_threads
from starling.learner.concurrent_losses import ConcurrentLosses
from starling.learner.optimizer import FlatOptimizer


def test_functions_run_at_the_same_time_and_results_keep_their_order():
    meeting = threading.Barrier(3)

    def meet(name):
        meeting.wait(timeout=240)  # nobody passes it alone
        return name, threading.current_thread() is threading.main_thread()

    results = ConcurrentLosses(3)([lambda name=name: meet(name) for name in "abc"])
    assert results == [("a", True), ("b", False), ("c", False)]


def test_more_functions_than_threads_and_one_thread():
    for threads in (1, 2):
        assert ConcurrentLosses(threads)([lambda i=i: i for i in range(5)]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_is_raised_once_all_have_ended(failing):
    ended = threading.Event()

    def fail():
        raise ValueError("no good")

    parts = [ended.set, fail] if failing else [fail, ended.set]
    with pytest.raises(ValueError, match="no good"):
        ConcurrentLosses(2)(parts)
    assert ended.is_set()


def test_denormals_are_flushed_in_every_thread():
    torch.set_flush_denormal(True)
    small = torch.tensor([1e-38])
    assert ConcurrentLosses(2)([lambda: float(small / 100)] * 2) == [0.0, 0.0]


TWO_WAYS = """
import torch
from starling.learner.concurrent_losses import ConcurrentLosses

torch.set_num_threads(1)
weights = [torch.nn.Parameter(torch.randn(8, 8)) for _ in range(8)]
concurrent = ConcurrentLosses(2, weights)

def transposed():  # without Python's lock
    return [weight.t() for weight in weights for _ in range(4)]

def indexed():  # with it
    return [weight[0] for weight in weights for _ in range(4)]

for _ in range(5_000):
    concurrent([transposed, indexed])
"""


def test_parameters_that_are_indexed_in_one_thread_and_differentiated_in_another():
    """Both need two locks, Python's and the parameter's; in a process of its own, which could not be ended else."""
    subprocess.run([sys.executable, "-c", TWO_WAYS], timeout=240, check=True)


LARGE = "net.torso.hidden=[128,128]"
SETTINGS = ["algo.learning_starts=300", LARGE, "eval.every=null"]


def trained(threads):
    runtime = build_runtime(RunPlan.from_config(load("sac-pendulum", [*SETTINGS, f"threads={threads}"])))
    for _ in runtime.run():
        if runtime.updates >= 40:
            break
    return runtime


def test_sac_learns_the_same_bits_on_two_cores_as_on_one(monkeypatch):
    seen = set()
    take = FlatOptimizer.take

    def noted(*args):
        seen.add(threading.current_thread().name)
        take(*args)

    monkeypatch.setattr(FlatOptimizer, "take", noted)
    alone, concurrent = trained(1), trained(2)
    assert len(seen) == 2, "the second learns in two threads"
    assert alone.updates == concurrent.updates == 40
    for one, other in zip(alone.learner.model.parameters(), concurrent.learner.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_threads_are_for_parts_first_and_for_products_then(monkeypatch):
    monkeypatch.setattr("starling.launch.plan.cores", lambda: 4)

    def planned(preset, *settings):
        run_plan = RunPlan.from_config(load(preset, list(settings)))
        return plan_threads(run_plan), parts_abreast(run_plan), torch_threads(run_plan)

    assert planned("sac-pendulum", LARGE) == (2, 2, 1)
    assert planned("sac-pendulum", LARGE, "threads=1") == (1, 1, 1)
    assert planned("sac-pendulum", LARGE, "threads=4") == (4, 2, 2)
    assert planned("sac-pendulum", LARGE, "runtime=processes", "env.num=3", "actors=3") == (1, 1, 1)
    assert planned("sac-pendulum") == (1, 1, 1), "a second thread would take longer to wake than to work"
    assert planned("dqn-cartpole") == (1, 1, 1)
    assert planned("dqn-cartpole", "threads=2") == (2, 1, 2)
