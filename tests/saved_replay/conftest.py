"""Fixtures with trained runs and their exported replays."""

import pytest

from starling.experiment.saved_replay import export as export_module
from starling.experiment.saved_replay.from_checkpoint import load_replay

RUNS = {
    "cartpole": [
        "dqn-cartpole", "env.num=2", "stop.env_steps=300", "algo.learning_starts=100", "algo.n_step=3",
        "algo.prioritized={}", "algo.fragment=16", "algo.updates_per_step=0.1",
    ],
    "wrapped": [
        "dqn-cartpole", "stop.env_steps=400", "algo.learning_starts=100", "algo.capacity=200", "algo.fragment=8",
        "algo.updates_per_step=0.1",
    ],
    "pong": [
        "dqn-pong", "env.num=2", "stop.env_steps=160", "algo.learning_starts=100", "algo.batch=2", "algo.capacity=130",
        "env.atari.size=36", "env.atari.max_frames=90", "algo.n_step=2", "algo.codec=zstd", "net.torso.kind=nature",
        "net.torso.hidden=[8]", "algo.fragment=4", "algo.updates_per_step=0.05", "threads=1",
        "precision=float32",
    ],
    "memory": [
        "r2d2-memory", "stop.env_steps=600", "algo.learning_starts=50", "algo.capacity=500", "env.num=2",
        "algo.updates_per_step=0.02", "algo.batch=4", "net.core.size=4", "algo.fragment=9",
    ],
}  # fmt: skip


@pytest.fixture(scope="session")
def run(tmp_path_factory, train_once):
    """A function for the folder of a run, trained to its last step on first use."""
    runs = {name: [*settings, "stop.return=null"] for name, settings in RUNS.items()}
    return train_once(tmp_path_factory.mktemp("runs"), runs)


@pytest.fixture(scope="session")
def saved(run):
    return lambda name: load_replay(run(name), which="newest", warn=print)


@pytest.fixture(scope="session")
def exported(saved, tmp_path_factory):
    """A function for the folder of a run's export, in files of a few steps each."""
    root = tmp_path_factory.mktemp("exports")

    def make(name):
        if not (root / name).exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(export_module, "PART_BYTES", 200_000 if name == "pong" else 2_000)
                export_module.export_replay(saved(name), root / name)
        return root / name

    return make


@pytest.fixture(scope="session")
def settings_of():
    return RUNS.__getitem__
