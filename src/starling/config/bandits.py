"""Settings of bandits over policies and over epsilons; does not import torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from starling.config.limits import Exponent, Items, Weight
from starling.config.parts import Part

MAX_CELLS = 10**6
"""Maximum number of arms times episodes in the window of one bandit."""


class BanditConfig(Part):
    """A sliding-window bandit per env over the returns of its last episodes (2003.13350, section 3.2)."""

    kind: Literal["ucb", "ucb_tuned"] = Field("ucb", description="sliding-window UCB, or UCB1-tuned in the window")
    window: Items = Field(160, ge=1, description="last episodes that count, per env, or trials of the evaluator")
    epsilon: float = Field(0.5, ge=0, le=1, description="ucb: probability of a uniformly random policy")
    bonus: Weight = Field(1.0, ge=0, description="ucb: weight of 1 / sqrt(plays)")

    def check_size(self, name: str, arms: int) -> None:
        """Raise ValueError if a bandit over so many arms, called `name`, would take too much memory and time."""
        if self.window * arms > MAX_CELLS:
            raise ValueError(
                f"window={self.window} times {name}={arms} are {self.window * arms:,} numbers per env, more than"
                f" {MAX_CELLS:,}: each choice compares all of them; lower one"
            )


class EpsilonBanditConfig(BanditConfig):
    """Bandits that choose the epsilon of each episode by recent returns, one bandit per env."""

    arms: Items = Field(8, ge=1, description="number of epsilons to choose among, N")
    ladder: Exponent = Field(
        7.0, ge=0, description="epsilon i of N is epsilon^(1 + ladder i / (N - 1)), with the present algo.epsilon"
    )

    @model_validator(mode="after")
    def _fits_into_memory(self) -> EpsilonBanditConfig:
        self.check_size("arms", self.arms)
        return self

    @model_validator(mode="after")
    def _arms_fit_the_window(self) -> EpsilonBanditConfig:
        if self.window < self.arms:
            raise ValueError(f"window={self.window} is less than arms={self.arms}: raise it")
        return self
