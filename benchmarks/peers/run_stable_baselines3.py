# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""Stable-Baselines3 on Pong: PPO and DQN.

Tried for seconds each on two idle cores. PPO: envs in processes and 2 torch threads 273 steps/s, envs in the same
process and 1 thread 226 (on one core of a shared machine). DQN: 8 envs in processes and 2 threads 115, 8 in the same
process 96, 4 in the same process and 1 thread 76.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from meter import Meter, measure
from pong_env import make_pong
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

FOREVER = 10**9


@dataclass(frozen=True)
class Settings:
    """Settings of workers and threads; the functions below have those of the algorithms."""

    envs: int
    env_processes: bool
    torch_threads: int


class Ticks(BaseCallback):
    """Ticks at the start of a rollout, right after an update, and ends the training when enough was measured."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter
        self.done = False

    def _on_rollout_start(self) -> None:
        self.done = self.meter.tick(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.done


def ppo(settings: Settings, seconds: float) -> Meter:
    """8 envs x 128 steps, 4 epochs x 4 minibatches; the first cycle is the warm-up."""
    model = PPO(
        "CnnPolicy", _envs(settings), n_steps=128, batch_size=256, n_epochs=4, learning_rate=2.5e-4, clip_range=0.1,
        ent_coef=0.01, device="cpu",
    )  # fmt: skip
    return _learn(model, Meter(seconds, warm_up=1024))


def dqn(settings: Settings, seconds: float) -> Meter:
    """An update of 32 transitions every 4 steps; the steps before learning starts are the warm-up.

    The replay is larger than a measurement fills, so its size does not matter.
    """
    model = DQN(
        "CnnPolicy", _envs(settings), learning_rate=1e-4, batch_size=32, buffer_size=40_000, learning_starts=1000,
        train_freq=max(1, 4 // settings.envs), gradient_steps=max(1, settings.envs // 4), target_update_interval=1000,
        exploration_initial_eps=0.1, exploration_final_eps=0.1, device="cpu",
    )  # fmt: skip
    return _learn(model, Meter(seconds, warm_up=1200))


def _envs(settings: Settings) -> Any:
    torch.set_num_threads(settings.torch_threads)
    return make_vec_env(make_pong, settings.envs, vec_env_cls=SubprocVecEnv if settings.env_processes else DummyVecEnv)


def _learn(model: Any, meter: Meter) -> Meter:
    model.learn(FOREVER, callback=Ticks(meter))
    model.get_env().close()
    return meter


if __name__ == "__main__":
    measure(
        ("stable-baselines3", "torch", "gymnasium", "ale-py", "numpy"),
        {"ppo": (ppo, Settings(8, True, 2)), "dqn": (dqn, Settings(8, True, 2))},
    )
