"""The reference of all metrics, compared with rows of real runs, its page in docs, and code that uses keys."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.agents import AGENTS, DQN, LSTM, NGU, R2D2, SMALL, VARIANTS
from support.metric_rows import entries, problems

import starling
from starling.cli.metrics import LAST, MAIN
from starling.cli.show import MAIN_LOSSES
from starling.experiment.run_folder import rows
from starling.experiment.run_folder.metric_keys import METRICS, PLACEHOLDERS, TEXT, find
from starling.experiment.run_folder.metrics import read_rows

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SHORT = ["stop.env_steps=800", "log.every=200", "checkpoint.every=400", "eval={every: 400, episodes: 2}"]
INLINE = {
    **AGENTS,
    **{name: VARIANTS[name] for name in ("impala laser", "sac discrete")},
    "ngu with two networks": ("r2d2-memory", [*R2D2, *LSTM, *NGU, "algo.separate_networks=true"]),
    "laser and clear": ("impala-clear-cartpole", ["algo.batch=8", "algo.unroll=16", "algo.laser={}"]),
    "metrics of the env": ("dqn-cartpole", [*DQN, "env.id=toy/rooms", "eval.metrics=[rooms]"]),
}
PROCESSES = {
    "central inference": ("dqn-cartpole", [*DQN, "runtime=processes", "inference=central", "actors=2"]),
    "two learners": ("impala-cartpole", ["algo.batch=4", "algo.unroll=16", "learners=2", "actors=2"]),
}
OVER_PROCESSES = {metric.key for metric in METRICS if metric.key.startswith("ledger/")} | {
    *("time/learner/wait_in", "time/learner/reduction", "time/hub/busy", "time/actors/wait_in", "time/actors/wait_out"),
    *(f"time/inference/{name}" for name in ("busy", "wait_in", "wait_out", "batch", "wait_ms", "budget_ms")),
    *(f"time/evaluator/{name}" for name in ("busy", "wait_in", "wait_out")),
}
"""Entries that no inline run has."""
NOT_SEEN = {
    "warnings": "only if training has a problem: tests/experiment/test_warnings.py",
    "learner/compiled": "compiling takes half a minute: tests/learner/test_gradients.py",
    "learner/loss_scale": "float16 is slow on a CPU: tests/learner/test_loss_scale.py",
    "faults/KIND": "only after a crash: tests/runtime/test_processes.py",
    "ray/nodes": "only over Ray: tests/matrix, tests/runtime/test_ray_cluster.py",
    "ray/weights_put": "only over Ray: tests/matrix",
    "time/checkpoints_lost": "only if a Ray node is lost while a checkpoint is written",
}
"""Entries that no run here has, with the reason."""


def used_entries(agents, folder):
    """Train agents and check all of their rows; returns the keys of the entries that occurred."""
    used, wrong = set(), {}
    for name, (preset, settings) in agents.items():
        run = starling.train(preset, [*SMALL, *SHORT, *settings, "run=run"], runs=folder / name).folder
        torch.set_num_threads(1)
        found = read_rows(run / "metrics.jsonl")
        assert len(found) > 3, name
        assert found[-1]["updates"] > 0, name
        if mistakes := {problem for row in found for problem in problems(row)}:
            wrong[name] = mistakes
        used |= {metric.key for row in found for key in row for metric in entries(key)}
    assert wrong == {}
    return used


def test_inline_runs_of_all_algorithms_have_the_keys_of_the_reference(tmp_path):
    expected = {metric.key for metric in METRICS} - OVER_PROCESSES - NOT_SEEN.keys()
    assert used_entries(INLINE, tmp_path) == expected


@pytest.mark.slow
def test_runs_over_processes_have_the_keys_of_the_reference(tmp_path):
    used = used_entries(PROCESSES, tmp_path)
    assert used >= OVER_PROCESSES
    assert not used & NOT_SEEN.keys()


def test_every_key_has_one_entry():
    keys = [metric.key for metric in METRICS]
    assert len(keys) == len(set(keys))
    assert all(metric.meaning and metric.when for metric in METRICS)
    assert NOT_SEEN.keys() | OVER_PROCESSES <= set(keys)
    assert {part for key in keys for part in key.split("/") if part.isupper()} == PLACEHOLDERS.keys()


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("loss/q", "loss/q"),
        ("loss/uniform-2/rho", "loss/SOURCE/rho"),
        ("loss/curiosity/rnd", "loss/curiosity/STREAM"),
        ("learner/critic/gradient_norm", "learner/OPTIMIZER/gradient_norm"),
        ("eval/return", "eval/return"),
        ("eval/distance", "eval/NAME"),
        ("eval/arm/12/share", "eval/arm/N/share"),
        ("faults/shard", "faults/KIND"),
        ("loss/mine", None),
        ("loss/other/rho", None),
        ("time/seconds/more", None),
        ("", None),
    ],
)
def test_an_entry_is_found_by_a_key(key, entry):
    found = find(key)
    assert (found and found.key) == entry


def test_columns_and_losses_of_the_commands_are_in_the_reference():
    assert all(find(key) for key in (*MAIN, *LAST, *(f"loss/{name}" for name in MAIN_LOSSES)))


def test_the_reader_of_rows_takes_text_where_the_reference_has_it():
    assert {metric.key for metric in METRICS if metric.unit == TEXT} == set(rows._TEXTS)


def test_the_page_in_docs_is_what_the_reference_says():
    command = [sys.executable, "-m", "starling.tools.metrics_reference"]
    generated = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    message = "run: python -m starling.tools.metrics_reference > docs/metrics.md"
    assert generated == PAGE.read_text(encoding="utf-8"), message


def test_the_reference_is_read_without_torch():
    script = "import sys, starling.tools.metrics_reference; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
