"""`starling plan` as a user runs it."""

import json

import pytest

SMALL = ["dqn-cartpole", "env.id=toy/identity", "net.torso.hidden=[16]", "--seconds", "0.3"]


@pytest.fixture
def plan(two_cores, in_process, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: in_process("plan", *arguments)


def test_json_values_add_up(plan, tmp_path):
    code, printed, complaint = plan(*SMALL, "--json")
    assert code == 0, complaint
    made = json.loads(printed.splitlines()[-1])
    memory = made["memory"]
    parts = sum(memory[name] for name in ("programs", "learning", "batches", "tables", "saving", "memories", "shared"))
    assert memory["total"] == parts < memory["free"]
    assert 0 < made["disk"]["checkpoint"] < made["disk"]["total"] < made["disk"]["free"]
    total = sum(cost["median"] for cost in made["seconds_a_step"].values())
    assert made["limit_steps_per_s"] == pytest.approx(made["cores"] / total)
    assert made["steps_per_s"] == pytest.approx(1 / total)
    assert made["seconds"] == pytest.approx(150_000 * total)
    assert list(tmp_path.iterdir()) == []


def test_table_lists_all_costs(plan):
    code, printed, complaint = plan(*SMALL, "stop.minutes=0.01")
    assert code == 0, complaint
    lines = printed.splitlines()
    names = [line[:10].strip() for line in lines]
    assert names == ["network", "memory", "shared", "disk", "env step", "inference", "training", "speed", "time"]
    assert "0:00:01" in lines[-1]  # stop.minutes ends the run


def test_free_disk_space_is_that_of_the_runs_folder(plan):
    code, printed, complaint = plan(*SMALL, "--runs", "/proc")
    assert (code, printed) == (2, "")
    assert "of disk for 5 checkpoints, and 0.0 kB is free: choose another disk with --runs" in complaint


def test_run_that_cannot_fit_is_a_one_line_error_with_code_2(plan):
    code, printed, complaint = plan("dqn-cartpole", "algo.capacity=1000000000000", "--json")
    assert (code, printed) == (2, "")
    assert len(complaint.splitlines()) == 1
    assert "of it for the tables" in complaint
    assert "lower algo.capacity from 1000000000000 to " in complaint


def test_help_has_an_example(plan):
    assert "Example: starling plan" in plan("--help")[1]


def test_parameters_are_counted_per_optimizer_if_there_are_several(plan):
    nets = "nets={policy: {torso: {hidden: [16]}}, value: {torso: {hidden: [3]}}}"
    settings = ["ppo-cartpole", "env.id=toy/identity", nets, "--seconds", "0.3"]
    code, printed, complaint = plan(*settings, "--json")
    assert code == 0, complaint
    made = json.loads(printed.splitlines()[-1])
    counts = made["parameters_by_optimizer"]
    assert list(counts) == ["policy", "value"]
    assert counts["policy"] > counts["value"] > 0
    assert made["parameters"] == sum(counts.values())
    rows = [line.split() for line in printed.splitlines()]
    assert [row[:2] for row in rows[1:3]] == [[name, f"{count:,}"] for name, count in counts.items()]
