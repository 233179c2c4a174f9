# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""Sample Factory on Pong: asynchronous PPO with one pass over the data, and synchronous PPO with four.

Tried for seconds each on two idle cores. With one pass: 2 workers x 8 envs in 2 splits, batch 256: 626 steps/s; serial
mode, 16 envs, batch 512: 466. Its learner has one torch thread unless it is serial; its running normalization of
images is off.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

from meter import Meter, measure
from pong_env import make_pong
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

NETWORK = {
    "encoder_conv_architecture": "convnet_atari", "encoder_conv_mlp_layers": 512, "nonlinearity": "relu",
    "use_rnn": False, "obs_scale": 255.0, "normalize_input": False, "normalize_returns": False,
}  # fmt: skip
QUIET = {
    "save_every_sec": 10**6, "save_best_every_sec": 10**6, "experiment_summaries_interval": 10**6,
    "decorrelate_experience_max_seconds": 0, "decorrelate_envs_on_one_worker": False,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of workers and threads; the functions below have those of the algorithms."""

    workers: int
    envs_per_worker: int
    splits: int
    serial: bool
    rollout: int
    batch: int


class Ticks(AlgoObserver):
    """Ticks after each training step of the learner, and ends the run when enough was measured."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        if self.meter.tick(runner.total_env_steps_since_resume or 0):
            runner.cfg.train_for_env_steps = 0


def impala(settings: Settings, seconds: float) -> Meter:
    """Each step is used once; the first 10 batches are the warm-up."""
    learning = {"async_rl": True, "num_epochs": 1, "num_batches_per_epoch": 1}
    return _train(settings, learning, Meter(seconds, warm_up=10 * settings.batch))


def ppo(settings: Settings, seconds: float) -> Meter:
    """8 envs x 128 steps, 4 epochs x 4 minibatches; the first two cycles are the warm-up."""
    learning = {"async_rl": False, "num_epochs": 4, "num_batches_per_epoch": 4}
    return _train(settings, learning, Meter(seconds, warm_up=2048))


def _train(settings: Settings, learning: dict[str, Any], meter: Meter) -> Meter:
    register_env("pong", _make)
    layout = {
        "num_workers": settings.workers, "num_envs_per_worker": settings.envs_per_worker,
        "worker_num_splits": settings.splits, "serial_mode": settings.serial, "rollout": settings.rollout,
        "recurrence": 1, "batch_size": settings.batch, "device": "cpu", "env_frameskip": 1,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        options = {"env": "pong", "experiment": "pong", "train_dir": folder} | NETWORK | QUIET | learning | layout
        arguments = [f"--{name}={value}" for name, value in options.items()]
        parser, _ = parse_sf_args(arguments)
        _, runner = make_runner(parse_full_cfg(parser, arguments))
        runner.register_observer(Ticks(meter))
        if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
            raise SystemExit("Sample Factory failed")
    return meter


def _make(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    return make_pong(render_mode)


if __name__ == "__main__":
    measure(
        ("sample-factory", "torch", "gymnasium", "ale-py", "numpy"),
        {
            "impala": (impala, Settings(2, 8, 2, serial=False, rollout=32, batch=256)),
            "ppo": (ppo, Settings(2, 4, 1, serial=False, rollout=128, batch=256)),
        },
    )
