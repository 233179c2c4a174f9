"""Costs of a run: the measured work is real, times are per env step and core, and neighbor processes compute."""

import os
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import gymnasium
import pytest

import starling
from starling import tree
from starling.config.load import load, preset_names
from starling.errors import UserError
from starling.launch.plan import RunPlan
from starling.replay.limiter import steps_per_update
from starling.replay.spec import TableSpec
from starling.tools.benchmark.costs import ACT, LEARN, _neighbors, _tell, measure
from starling.tools.benchmark.workload import Work

SMALL = ["net.torso.hidden=[16]"]
CASES = [
    # Batches of Atari images take too long on one core; the omitted MuJoCo presets are like HalfCheetah.
    *(
        [name]
        for name in preset_names()
        if not name.endswith(("pong", "atari", "montezuma", "hopper", "walker2d", "ant"))
    ),
    ["dqn-pong", "env.num=2"],
    ["dqn-cartpole", "algo.n_step=3", "algo.prioritized.alpha=0.6", "env.num=4"],
    ["ppo-cartpole", "env.id=toy/memory", "net.core.kind=lstm", "net.shared=true", "net.inputs=[action, reward]"],
    ["ppo-cartpole", "runtime=processes", "actors=4"],
    ["dqn-cartpole", "env.id=toy/dict"],
]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_every_kind_of_agent_can_be_measured(case):
    run_plan = RunPlan.from_config(load(case[0], [*case[1:], "compile=false"]))
    work = Work(run_plan)
    num_envs = len(run_plan.groups()[0].env_index)
    stepped, inferred, trained = work.step_envs(), work.infer(), work.train()
    work.close()
    assert 0 <= stepped <= num_envs
    assert inferred == num_envs
    assert trained == steps_per_update(run_plan.tables)
    assert work.sample.trajectory.batch_size == run_plan.tables[0].batch
    assert work.learner.total_skipped == 0


def test_an_update_counts_for_the_env_steps_between_updates():
    queue = TableSpec("q", "slots", length=20, batch=8, capacity=8, sampler="fifo", fragment=20)
    replay = TableSpec("r", "ring", length=3, batch=32, capacity=1000, updates_per_step=0.25)
    assert steps_per_update([queue]) == 160
    assert steps_per_update([replace(queue, max_times_sampled=2)]) == 80
    assert steps_per_update([replay]) == 4


def test_restore_undoes_the_measured_updates():
    work = Work(RunPlan.from_config(load("dqn-cartpole", SMALL)))
    learner = work.learner
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    for _ in range(3):
        work.train()
    assert any((value != before[name]).any() for name, value in learner.model.state_dict().items())
    work.restore()
    assert all((value == before[name]).all() for name, value in learner.model.state_dict().items())
    work.close()


ENV = """
    import time
    import gymnasium
    from gymnasium import spaces

    class Slow(gymnasium.Env):
        observation_space, action_space = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            begin = time.process_time()
            while time.process_time() - begin < 0.004:
                pass
            return self.observation_space.sample(), 0.0, False, False, {}
"""


@pytest.mark.usefixtures("two_cores")
def test_costs_are_per_env_step_on_one_core(tmp_path, monkeypatch):
    (tmp_path / "slow_env.py").write_text(textwrap.dedent(ENV))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # for the process on the other core
    run_plan = RunPlan.from_config(
        load("dqn-cartpole", ["env.id=slow_env:Slow", "env.num=2", "algo.fragment=2", *SMALL])
    )
    costs = measure(run_plan, seconds=1.0)
    assert costs.env_step.low >= 0.004  # not 0.008: stepping two envs gives two env steps
    assert costs.env_step.low < 0.007
    assert 0 < costs.inference.low <= costs.inference.median <= costs.inference.high
    assert costs.inference.median < costs.env_step.low
    assert costs.total == costs.env_step.median + costs.inference.median + costs.training.median
    assert costs.limit == costs.cores / costs.total


def test_neighbor_processes_compute_and_end_afterwards():
    with _neighbors(load("dqn-cartpole", SMALL), 1) as neighbors:
        (worker,) = children()
        for word in (LEARN, ACT):
            _tell(neighbors, [word])
            target = cpu_seconds(worker) + 0.5
            while cpu_seconds(worker) < target:  # about a second on an idle machine
                time.sleep(0.05)
    assert not children()


def children():
    """The neighbor processes that this process has started."""
    found = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [
        pid for pid in found if parent_of(pid) == os.getpid() and b"starling.tools.benchmark.costs" in command_of(pid)
    ]


def parent_of(pid):
    try:
        return int(stat_of(pid)[1])
    except OSError:  # it has ended
        return None


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def stat_of(pid):
    """The fields of /proc/PID/stat, beginning with the state."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def cpu_seconds(pid):
    fields = stat_of(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.usefixtures("two_cores")
def test_agent_registered_only_in_this_process_is_a_clear_error():
    starling.register_env("only-here", lambda: gymnasium.make("CartPole-v1"))
    with pytest.raises(UserError, match=r"a second process ended early: .*only-here"):
        measure(RunPlan.from_config(load("dqn-cartpole", ["env.id=only-here", *SMALL])), seconds=0.1)


def test_inference_cost_includes_intrinsic_rewards():
    work = Work(RunPlan.from_config(load("ppo-cartpole", ["curiosity=[{kind: episodic, capacity: 100}]", "env.num=2"])))
    try:
        (count,) = (leaf for name, leaf in tree.items(work._group.intrinsic_state) if name.endswith("count"))
        before = count.clone()
        work.infer()
        assert (count == before + 1).all()
    finally:
        work.close()
