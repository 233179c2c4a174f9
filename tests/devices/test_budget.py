"""Every agent acts, learns, and is evaluated on the mock device; the host waits for it once per act and per update."""

from collections import defaultdict
from contextlib import contextmanager

import pytest
import torch
from support.agents import AGENTS, DQN, LSTM, MIXED, NGU, PQN, R2D2, SMALL, VARIANTS

from starling.actor.core import Policy
from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.learner.learner import Learner
from starling.runtime.candidate_scorer import CandidateScorer

MEASURED = {"act": (Policy, "step"), "act again": (Policy, "infer"), "update": (Learner, "step")}
MEASURED["score"] = (CandidateScorer, "score")
BUDGET = (1, 1, 1)
"""Synchronizations, copies to the device, and copies to the host."""
FIRST = {"act": 2, "act again": 2, "update": 1}
"""Calls that may cost more: the policy learns which noise the algorithm asks for, optimizers allocate their moments."""
QUEUE = "{kind: queue, share: 0.5}"
ATTENTIVE = "{kind: attentive, share: 0.5, capacity: 40, features: network, distance: cosine}"
ENDLESS = "{kind: rnd, weight: 0.05, episodic: false, share: 1.0, warm_up: 8, torso: {hidden: [8]}}"
PREVIOUS = ["net.inputs=[action, reward]"]  # with the intrinsic rewards of the step before
MORE = {
    "ngu agent57": ("r2d2-memory", [*R2D2, *LSTM, *NGU, *PREVIOUS, "algo.separate_networks=true", "net.shared=false"]),
    "r2d2 delta_q": ("r2d2-memory", [*R2D2, *LSTM, "algo.delta_q=true"]),
    "dqn endless": ("dqn-cartpole", [*DQN, f"curiosity=[{ENDLESS}]"]),
    "pqn endless": ("pqn-cartpole", [*PQN, *LSTM, *PREVIOUS, f"curiosity=[{ENDLESS}]"]),
    "impala network": ("impala-attentive-cartpole", [*MIXED, *LSTM, f"algo.sources=[{QUEUE}, {ATTENTIVE}]"]),
}
"""Agents with operations on a device that no other one has."""
EVERY_AGENT = {**AGENTS, **VARIANTS, **MORE}
TWO_LOOPS = ["inference=central", "actors=2"]
CENTRAL = ["dqn", "ngu", "ppo curious", "r2d2", "sac"]
RUNS = [(agent, []) for agent in EVERY_AGENT] + [(agent, TWO_LOOPS) for agent in CENTRAL]


FEW = {
    "ppo": ["algo.rollout=8", "algo.epochs=2", "algo.minibatches=2"],
    "pqn": ["algo.rollout=8", "algo.minibatches=2"],
    "ngu": ["algo.learning_starts=40", "algo.batch=8", "algo.meta={trials: 2}"],
    "r2d2": ["algo.learning_starts=40", "algo.batch=8"],
}
"""Settings of algorithms with which their first updates take fewer operations."""


def build(agent, *more):
    preset, settings = EVERY_AGENT[agent]
    settings = [*settings, *FEW.get(agent.split()[0], [])]
    fixed = ["runtime=inline", "compile=false", "precision=float32", "eval={every: 1000000, episodes: 2}"]
    return build_runtime(RunPlan.from_config(load(preset, [*SMALL, *settings, *fixed, *more])))


@contextmanager
def measured(device, monkeypatch):
    """Counts of every call of each method in `MEASURED`, by its name and the object."""
    calls = defaultdict(list)

    def watch(name, owner, method):
        original = getattr(owner, method)

        def call(*args):
            with device.counting() as mine:
                result = original(*args)
            calls[name, id(args[0])].append(mine)
            return result

        monkeypatch.setattr(owner, method, call)

    for name, place in MEASURED.items():
        watch(name, *place)
    yield calls


def learn(runtime, updates):
    for _ in runtime.run():
        if runtime.updates >= updates:
            return
    raise AssertionError


def over_budget(calls):
    """Calls that cost too much, but for the first ones of each object."""
    later = [(name, call) for (name, _), all_calls in calls.items() for call in all_calls[FIRST.get(name, 0) :]]
    return [
        f"{name}: {call}" for name, call in later if any(n > most for n, most in zip(call.totals, BUDGET, strict=True))
    ]


@pytest.mark.parametrize(("agent", "topology"), RUNS, ids=lambda value: value if isinstance(value, str) else len(value))
def test_host_waits_once_per_act_and_update(agent, topology, mock_device, monkeypatch):
    runtime = build(agent, "device=mock", *topology)
    assert {tensor.device.type for tensor in runtime.learner.model.state_dict().values()} == {"mock"}
    with measured(mock_device, monkeypatch) as calls:
        learn(runtime, 3)
        for _ in runtime.evaluate(wait=True):
            pass
    assert "eval/return" in runtime.evaluations()[-1]
    assert over_budget(calls) == []
    scored = any(name == "score" for name, _ in calls)
    assert scored == (agent in {"impala attentive", "impala elite lstm", "impala network"})
    assert all(value is None or value == value for value in runtime.drain_metrics().values())


SAMPLED = {"sac", "sac prioritized"}
"""Agents whose loss draws random numbers, which differ from device to device."""
RANKED = {"impala elite lstm"}
"""Agents whose first batch has the candidates of largest distance, while all distances are rounding errors."""


@pytest.mark.parametrize("agent", [agent for agent in EVERY_AGENT if agent not in SAMPLED | RANKED])
def test_weights_and_metrics_equal_those_of_a_cpu(agent, mock_device):
    results = []
    for device in ("cpu", "mock"):
        runtime = build(agent, f"device={device}")
        learn(runtime, 3)
        weights = {name: tensor.cpu() for name, tensor in runtime.learner.model.state_dict().items()}
        results.append((weights, runtime.drain_metrics()))
    (here, mine), (there, theirs) = results
    for name, tensor in here.items():
        torch.testing.assert_close(there[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    timeless = {name for name in mine if not name.startswith("time/")}
    assert timeless == {name for name in theirs if not name.startswith("time/")}
    for name in timeless:
        assert theirs[name] == pytest.approx(mine[name], rel=1e-2, abs=1e-4), name
