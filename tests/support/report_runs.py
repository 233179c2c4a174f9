"""Small run folders with chosen rows, without training."""

import json

from starling.config.load import load
from starling.experiment.run_folder.folder import create

STAMP = "2026-11-19 10:00:00"


def rows(count=20, *, start=0.0, gain=1.0, skip=1, **more):
    """Rows of a run that scores `start` at first and gains `gain` per row, at 1,000 steps and 2 seconds per row."""
    return [
        {
            "env_steps": 1_000 * i,
            "updates": 10 * i,
            "episodes": 3 * i,
            "return": start + gain * i,
            "episode_length": 10.0 + i,
            "loss/q": 1.0 / i,
            "loss/q_values": 0.1 * i,
            "learner/lag": 5.0,
            "time/seconds": 2.0 * i,
            "time/steps_per_s": 500.0,
            "time/frames_per_s": 500.0 * skip,
            "time/updates_per_s": 5.0,
            "time/bottleneck": "one process: 20% learning, 80% acting; more would help",
            **more,
        }
        for i in range(1, count + 1)
    ]


def make_run(root, name, preset="ppo-cartpole", overrides=(), metrics=None, log=("run: here",)):
    """Create a run folder under `root`; returns its path."""
    place = create(root, load(preset, [f"run={name}", *overrides]))
    found = rows() if metrics is None else metrics
    place.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in found))
    place.log_file.write_text("".join(f"{STAMP} {line}\n" for line in log))
    return place.path
