"""Presets with curiosity, shortened to seconds, train and resume from a checkpoint."""

import pytest

import starling
from starling.api import Quiet
from starling.config.load import load
from starling.experiment import train as training
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows

PPO = ["algo.minibatches=1", "algo.epochs=1", "env.num=2", "algo.rollout=16", "stop.env_steps=64"]
REPLAY = ["env.num=2", "algo.batch=2", "algo.capacity=2000", "algo.learning_starts=4", "algo.updates_per_step=0.05"]
PRESETS = {
    "ppo-icm-rooms": PPO,
    "r2d2-rnd-deepsea": [*REPLAY, "stop.env_steps=400"],
    "r2d2-novelty-deepsea": [*REPLAY, "stop.env_steps=400"],
    "agent57-deepsea": [*REPLAY, "stop.env_steps=400"],
    "ppo-rnd-montezuma": [*PPO, "threads=1"],
    "ngu-montezuma": [
        *REPLAY, "runtime=inline", "actors=1", "threads=1", "algo.burn_in=2", "algo.unroll=4", "algo.period=2",
        "algo.fragment=4", "net.core.size=16", "algo.episodic.capacity=50", "stop.env_steps=64",
    ],
}  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_with_curiosity_trains_and_continues_from_a_checkpoint(preset, tmp_path):
    first_run = starling.train(preset, ["checkpoint.every=100000000", *PRESETS[preset]], runs=tmp_path).folder
    before = read_rows(RunFolder(first_run).metrics_file)[-1]
    steps = 2 * before["env_steps"]
    further = load(str(RunFolder(first_run).config_file), [f"stop.env_steps={steps}"])
    after = read_rows(
        RunFolder(training.branch(first_run, further, tmp_path, Quiet(), which="newest").folder).metrics_file
    )[-1]
    assert after["env_steps"] >= steps
    assert after["updates"] > before["updates"] > 0
