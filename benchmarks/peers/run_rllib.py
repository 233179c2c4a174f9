# mypy: disable-error-code="import-not-found, import-untyped, misc, union-attr, no-untyped-call"
"""RLlib on Pong: IMPALA.

Tried for seconds each on two idle cores. With batch 512 and one learner: 1 env runner x 16 envs 355 steps/s, 2 x 8 envs
254. A learner in the driver's process (1 x 8 envs, batch 256, 2 torch threads) did 170 on a shared machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from meter import Meter, measure
from pong_env import make_pong
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.tune.registry import register_env
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    """Settings of workers and threads; the functions below have those of the algorithms."""

    env_runners: int
    envs_per_runner: int
    fragment: int
    batch: int


class NatureCNN(TorchRLModule, ValueFunctionAPI):
    """The network of Mnih et al. 2015 with a policy and a value; RLlib's own does not accept uint8 images."""

    def setup(self) -> None:
        self.torso = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip
        actions: Any = self.action_space
        self.policy = nn.Linear(512, actions.n)
        self.value = nn.Linear(512, 1)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        features = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """Values [B] of observations [B, 4, 84, 84]."""
        features = self._features(batch) if embeddings is None else embeddings
        value: Tensor = self.value(features)
        return value.squeeze(-1)

    def _features(self, batch: dict[str, Any]) -> Tensor:
        features: Tensor = self.torso(batch[Columns.OBS].float() / 255)
        return features


def impala(settings: Settings, seconds: float) -> Meter:
    """Each step is used once; the first 10 batches are the warm-up."""
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    register_env("pong", lambda config: make_pong())
    algorithm = _config(settings).build_algo()
    meter = Meter(seconds, warm_up=10 * settings.batch)
    steps, done = 0, False
    while not done:
        before, steps = steps, _trained(algorithm.train(), settings.fragment)
        # A batch in a while moves the count by hundreds: it is read just after it has moved, at both ends.
        done = steps > before and meter.tick(steps)
    algorithm.stop()
    ray.shutdown()
    return meter


def _config(settings: Settings) -> Any:
    return (
        IMPALAConfig()
        .environment("pong")
        .env_runners(
            num_env_runners=settings.env_runners,
            num_envs_per_env_runner=settings.envs_per_runner,
            rollout_fragment_length=settings.fragment,
        )
        .training(train_batch_size_per_learner=settings.batch, lr=6e-4)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=NatureCNN))
        .reporting(min_time_s_per_iteration=1)
    )


def _trained(result: dict[str, Any], fragment: int) -> int:
    """Steps that the learner has used so far; RLlib also counts the step by which each fragment is extended."""
    learner = result.get("learners", {}).get("__all_modules__", {})
    return int(learner.get("num_env_steps_trained_lifetime", 0)) * fragment // (fragment + 1)


if __name__ == "__main__":
    measure(
        ("ray", "torch", "gymnasium", "ale-py", "numpy"),
        {"impala": (impala, Settings(1, 16, fragment=32, batch=512))},
    )
