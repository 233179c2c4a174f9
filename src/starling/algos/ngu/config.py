"""Settings of NGU; the defaults follow 2002.06038, appendix A, with or without the two networks of 2003.13350."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from starling.algos.r2d2.config import R2D2Config
from starling.config.bandits import BanditConfig
from starling.config.curiosity import EpisodicConfig, RNDConfig, check_part_of_novelty
from starling.config.limits import Items, Length, Magnitude, Weight
from starling.config.parts import OptimizerConfig
from starling.config.quantities import TARGET_EVERY, UpdateInterval

UNUSED = {"name", "weight", "discount", "lambda_", "share"}
"""Settings of intrinsic rewards that only apply to a separate reward stream."""


class MetaConfig(BanditConfig):
    """Bandits that choose the policy of each episode by recent returns (2003.13350).

    Each env has its own, and so has the evaluator. An evaluation first plays trials, in which its bandit chooses; the
    first evaluation of a run tries every policy. Then it plays `eval.episodes` with the policy whose trials in the
    window have the largest mean return. Only these are its score.
    """

    trials: Items = Field(
        10,
        ge=0,
        description="trial episodes of an evaluation before those of its score; more if the window lacks more policies,"
        " as at the first evaluation",
    )


class NGUConfig(R2D2Config):
    """R2D2 with a family of policies with different weights of novelty (Never Give Up)."""

    implementation: ClassVar[str] = "starling.algos.ngu.ngu:NGU"
    networks: ClassVar[Mapping[str, str]] = {
        "q": "Q values of the policy's reward; with algo.separate_networks, those of the env's reward",
        "q_novelty": "with algo.separate_networks: Q values of novelty",
    }
    policies: Items = Field(32, ge=1, description="number of policies, N")
    novelty: Weight = Field(0.3, ge=0, description="weight of novelty for the most curious policy, beta")
    discount: float = Field(0.997, ge=0, lt=1, description="gamma of the policy that exploits, if family=ngu")
    min_discount: float = Field(0.99, ge=0, lt=1, description="gamma of the most curious policy, if family=ngu")
    family: Literal["ngu", "agent57"] = Field(
        "ngu", description="discounts between the two; agent57: its own family, from 0.9999 to 0.99"
    )
    separate_networks: bool = Field(False, description="one network for the env's reward, one for novelty (Agent57)")
    meta: MetaConfig | None = Field(
        None,
        description="bandits choose policies, and evaluation scores the one with the largest return in its trials;"
        " null: each env has a fixed policy, and evaluation plays the first, which exploits",
    )
    lifelong: RNDConfig = Field(
        RNDConfig(optimizer=OptimizerConfig(args={"lr": 5e-4})),
        description="lifelong novelty, which modulates episodic novelty",
    )
    lifelong_limit: Magnitude = Field(5.0, ge=1, description="largest modulation, L")
    episodic: EpisodicConfig = Field(
        EpisodicConfig(optimizer=OptimizerConfig(args={"lr": 5e-4})), description="episodic novelty"
    )
    predictor_steps: Length = Field(
        5, ge=1, description="last steps of a sequence that embedding and predictor learn from"
    )
    retrace: float | None = Field(0.95, ge=0, le=1, description="lambda of Retrace (1606.02647); null: n-step")
    target_every: UpdateInterval = Field(1_500, description=TARGET_EVERY)

    def network_names(self) -> tuple[str, ...]:
        return ("q", "q_novelty") if self.separate_networks else ("q",)

    @model_validator(mode="after")
    def _settings_have_a_use(self) -> NGUConfig:
        if self.epsilon_bandit is not None:
            raise ValueError("epsilon_bandit: ngu's bandits choose among its policies (meta); leave it out")
        if self.meta is not None and self.meta.window < self.policies:
            raise ValueError(f"meta.window={self.meta.window} is less than policies={self.policies}: raise it")
        if self.meta is not None:
            self.meta.check_size("policies", self.policies)
        for section, part in (("lifelong", self.lifelong), ("episodic", self.episodic)):
            check_part_of_novelty(section, part, UNUSED)
        return self
