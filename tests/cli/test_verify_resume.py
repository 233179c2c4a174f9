"""`verify-resume` detects differences, and passes for every kind of agent, with replay, priorities, and memory."""

import json
import shutil
from dataclasses import replace

import pytest

from starling.experiment.run_folder.folder import RunFolder
from starling.tools.verify import Counters, compare, compare_counters, verify

SHARED = ["env.num=2", "net.torso.hidden=[16]"]
DQN = [
    "algo.learning_starts=100",
    "algo.fragment=16",
    "algo.n_step=3",
    "algo.prioritized.alpha=0.6",
    "algo.double=true",
]
PPO = ["net.core.kind=lstm", "net.core.size=8", "net.inputs=[action, reward]", "algo.epochs=2", "algo.minibatches=2"]

SAC = ["algo.learning_starts=100", "algo.batch=32", "algo.updates_per_step=0.25", "algo.n_step=2"]
GAUSSIAN = ["env.id=Pendulum-v1", "algo.normalize_observations=true", "algo.normalize_rewards=true", "algo.epochs=2"]


def test_killed_and_resumed_run_equals_an_uninterrupted_one(in_process):
    settings = [*SHARED, *DQN, "algo.dueling=true"]
    code, printed, complaint = in_process("verify-resume", "dqn-cartpole", *settings, "--steps", 400)
    assert code == 0, printed + complaint
    assert printed.splitlines() == [
        "one run of 800 env steps",
        "the same run, killed after its checkpoint at 400",
        "resuming it",
        "equal bit for bit: 400 steps + kill -9 + resume + 400 steps = 800 steps in one run",
    ]


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("ppo-cartpole", PPO),
        ("ppo-cartpole", ["env.id=toy/counting"]),
        ("ppo-cartpole", GAUSSIAN),
        ("sac-pendulum", [*SAC, "algo.prioritized.alpha=0.6"]),
    ],
)
def test_interrupted_and_resumed_run_equals_an_uninterrupted_one(resume_differences, preset, settings):
    assert resume_differences(preset, [*SHARED, *settings], 600) == []


def test_difference_of_one_bit_or_one_number_is_found(tmp_path):
    one, other = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "other")
    last = one.checkpoints / "step-000000000010"
    last.mkdir(parents=True)
    (last / "learner.safetensors").write_bytes(b"\x00\x01")
    one.metrics_file.write_text(json.dumps({"env_steps": 10, "loss/q": 0.5, "time/seconds": 1}) + "\n")
    shutil.copytree(one.path, other.path)
    other.metrics_file.write_text(json.dumps({"env_steps": 10, "loss/q": 0.5, "time/seconds": 2}) + "\n")
    assert compare(one, other) == []
    other.metrics_file.write_text(json.dumps({"env_steps": 10, "loss/q": 0.51, "time/seconds": 2}) + "\n")
    assert compare(one, other) == ["metrics.jsonl row 1: loss/q"]
    (other.checkpoints / last.name / "learner.safetensors").write_bytes(b"\x00\x03")
    assert compare(one, other)[0] == "step-000000000010/learner.safetensors"
    (other.checkpoints / last.name).rename(other.checkpoints / "step-000000000011")
    assert "step-000000000011" in compare(one, other)[0]


@pytest.mark.slow
def test_with_processes_all_counters_add_up():
    assert verify("dqn-cartpole", ["env.num=4", "actors=2", *SHARED[1:], *DQN, "learners=2"], 600, say=str) == []


def test_counter_that_does_not_add_up_is_found():
    before = Counters(rows=1, episodes=2, env_steps=100, updates=10, inserted=(100,), drawn=(12,))
    after = Counters(rows=2, episodes=3, env_steps=150, updates=20, inserted=(150,), drawn=(23,))
    ledger = {"ledger/produced": 60, "ledger/inserted": 50, "ledger/open": 10, "ledger/lost": 0}
    rows = [{"env_steps": 90, "updates": 9, "episodes": 2, **ledger}]
    more = [*rows, {"env_steps": 150, "updates": 20, "episodes": 3, **ledger}]
    assert compare_counters(before, after, rows, more) == []
    for name, value in [("env_steps", 149), ("inserted", (149,)), ("updates", 30), ("drawn", (30,))]:
        assert len(compare_counters(before, replace(after, **{name: value}), rows, more)) == 1, name
    assert compare_counters(before, after, [], more) == [
        "metrics.jsonl: env_steps decreased",
        "metrics.jsonl: updates decreased",
    ]
    assert compare_counters(before, after, [more[1]], more)
    assert compare_counters(before, after, rows, [rows[0], {**more[1], "ledger/lost": 1}])
