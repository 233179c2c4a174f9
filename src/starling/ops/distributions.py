"""Action distributions with few tensor ops per method, since `sample` runs at every env step.

The caller passes noise, uniform in (0, 1), so a sample is a pure function of its parameters and its noise.
Shapes: [...] are batch axes, A the number of discrete actions, D the dimensions of a continuous action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

import torch
from torch.nn.functional import softplus

from starling.ops.shapes import check_shapes
from starling.ops.value import batched_index
from starling.types import Tensor

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)


def open_interval(noise: Tensor) -> Tensor:
    """Clamp noise to the open interval (0, 1), since rounding can yield 0 or 1."""
    half_ulp = torch.finfo(noise.dtype).eps / 2
    return noise.clamp(half_ulp, 1.0 - half_ulp)


def _log_probabilities(logits: Tensor) -> Tensor:
    """log p [..., A], finite even for p = 0 (a logit of -inf), so that 0 * log 0 is 0 and not NaN."""
    return logits.log_softmax(-1).clamp(min=torch.finfo(logits.dtype).min)


def _log_slope(x: Tensor) -> Tensor:
    """log(1 - tanh^2 x) [...], computed as 2 (log 2 - x - softplus(-2 x)), which does not underflow."""
    return 2.0 * (_LOG_TWO - x - softplus(-2.0 * x))


@dataclass(frozen=True)
class Categorical:
    """A distribution over A discrete actions.

    Attributes:
        logits: [..., A], may be unnormalized; -inf masks an action.
    """

    logits: Tensor

    @property
    def noise_size(self) -> int:
        """Uniform numbers per action that `sample` takes."""
        return 1

    @torch.no_grad()
    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions [...] int64 by inverting the cumulative distribution; noise [..., 1]."""
        check_shapes("Categorical.sample", logits=(self.logits, "... A"), noise=(noise, "... 1"))
        cumulative = self.logits.softmax(-1).cumsum(-1)
        # Scaling by the actual total keeps the threshold below it: rounding never selects an action out of range or one
        # of probability 0.
        threshold = open_interval(noise) * cumulative[..., -1:]
        return (cumulative <= threshold).sum(-1)

    def mode(self) -> Tensor:
        """The most likely action [...] int64."""
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """log p(action) [...]; action [...] int."""
        return batched_index(self._log_p, action)

    @property
    def _log_p(self) -> Tensor:
        """log p [..., A], computed once, since a loss needs both log-probabilities and entropy."""
        if torch.compiler.is_compiling():  # the compiler shares the result itself, and cannot trace `cached_property`
            return self.logits.log_softmax(-1)
        return self._kept_log_p

    @cached_property
    def _kept_log_p(self) -> Tensor:
        return self.logits.log_softmax(-1)

    def entropy(self) -> Tensor:
        """-sum p log p [...]."""
        log_p = self._log_p.clamp(min=torch.finfo(self.logits.dtype).min)  # so that 0 * log 0 is 0 and not NaN
        return -(log_p.exp() * log_p).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other) [...]; very large but finite if `other` masks an action that `self` allows."""
        check_shapes("Categorical.kl", "... A", logits=self.logits, other=other.logits)
        log_p, log_q = _log_probabilities(self.logits), _log_probabilities(other.logits)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    def params(self) -> dict[str, Tensor]:
        """The logits, to be recorded per step."""
        return {"logits": self.logits}

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor]) -> Self:
        """The distribution with these `params`."""
        return cls(params["logits"])


@dataclass(frozen=True)
class MultiCategorical:
    """K independent categorical distributions, each with its own number of actions.

    Attributes:
        logits: K tensors [..., A_k].
    """

    logits: tuple[Tensor, ...]

    @property
    def noise_size(self) -> int:
        """Uniform numbers per action that `sample` takes."""
        return len(self.logits)

    @property
    def parts(self) -> tuple[Categorical, ...]:
        """The K categorical distributions."""
        return tuple(Categorical(logits) for logits in self.logits)

    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions [..., K] int64; noise [..., K]."""
        each = zip(self.parts, noise.unbind(-1), strict=True)
        return torch.stack([part.sample(one.unsqueeze(-1)) for part, one in each], dim=-1)

    def mode(self) -> Tensor:
        """The most likely action [..., K] int64."""
        return torch.stack([part.mode() for part in self.parts], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """log p(action) [...]; action [..., K] int."""
        each = zip(self.parts, action.unbind(-1), strict=True)
        return torch.stack([part.log_prob(one) for part, one in each]).sum(0)

    def entropy(self) -> Tensor:
        """Sum of the K entropies [...]."""
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def kl(self, other: MultiCategorical) -> Tensor:
        """KL(self || other) [...]."""
        each = zip(self.parts, other.parts, strict=True)
        return torch.stack([mine.kl(theirs) for mine, theirs in each]).sum(0)

    def params(self) -> dict[str, Tensor]:
        """The logits of every categorical distribution, to be recorded per step."""
        return {f"logits_{k}": logits for k, logits in enumerate(self.logits)}

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor]) -> Self:
        """The distribution with these `params`."""
        return cls(tuple(params[f"logits_{k}"] for k in range(len(params))))


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution with diagonal covariance.

    Attributes:
        mean: [..., D].
        log_std: [..., D], or [D] if all states share it.
    """

    mean: Tensor
    log_std: Tensor

    @property
    def noise_size(self) -> int:
        """Uniform numbers per action that `sample` takes."""
        return int(self.mean.shape[-1])

    def sample(self, noise: Tensor) -> Tensor:
        """Actions [..., D]; noise [..., D]; the gradient flows into mean and log-std."""
        check_shapes("Gaussian.sample", "... D", mean=self.mean, noise=noise)
        return torch.addcmul(self.mean, self.log_std.exp(), torch.special.ndtri(open_interval(noise)))

    def mode(self) -> Tensor:
        """The mean [..., D]."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """log p(action) [...]; action [..., D]."""
        check_shapes("Gaussian.log_prob", "... D", mean=self.mean, action=action)
        z = (action - self.mean) * torch.exp(-self.log_std)
        return -(0.5 * z.square() + self.log_std + _HALF_LOG_TWO_PI).sum(-1)

    def entropy(self) -> Tensor:
        """Sum over dimensions of log std + log(2 pi e) / 2 [...]."""
        return (self.log_std.expand_as(self.mean) + (0.5 + _HALF_LOG_TWO_PI)).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        """KL(self || other) [...]."""
        check_shapes("Gaussian.kl", "... D", mean=self.mean, other=other.mean)
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * torch.exp(-other.log_std)
        return (0.5 * (torch.expm1(2.0 * log_ratio) + z.square()) - log_ratio).sum(-1)

    def params(self) -> dict[str, Tensor]:
        """Mean and log-std, both [..., D], so that they can be recorded per step."""
        return {"mean": self.mean, "log_std": self.log_std.expand_as(self.mean)}

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor]) -> Self:
        """The distribution with these `params`."""
        return cls(params["mean"], params["log_std"])


@dataclass(frozen=True)
class TanhGaussian:
    """tanh of a Gaussian, with actions in (-1, 1) (1801.01290, appendix C); the entropy has no closed form.

    Attributes:
        mean: [..., D], before tanh.
        log_std: [..., D], or [D] if all states share it; before tanh.
    """

    mean: Tensor
    log_std: Tensor

    @property
    def base(self) -> Gaussian:
        """The distribution before tanh."""
        return Gaussian(self.mean, self.log_std)

    @property
    def noise_size(self) -> int:
        """Uniform numbers per action that `sample` takes."""
        return int(self.mean.shape[-1])

    def sample(self, noise: Tensor) -> Tensor:
        """Actions [..., D]; noise [..., D]; the gradient flows into mean and log-std."""
        return self.base.sample(noise).tanh()

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions [..., D] and their log p [...] for uniform noise [..., D]."""
        return self.from_normal(torch.special.ndtri(open_interval(noise)))

    def from_normal(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [..., D] and their log p [...] for standard normal z [..., D]; exact even if tanh saturates.

        The density of the Gaussian follows from z itself, without dividing by the std again.
        """
        check_shapes("TanhGaussian.from_normal", "... D", mean=self.mean, z=z)
        pre_tanh = torch.addcmul(self.mean, self.log_std.exp(), z)
        constant = -0.5 * z.square() - _HALF_LOG_TWO_PI
        return pre_tanh.tanh(), (constant - self.log_std - _log_slope(pre_tanh)).sum(-1)

    def mode(self) -> Tensor:
        """tanh of the mean [..., D]."""
        return self.mean.tanh()

    def log_prob(self, action: Tensor) -> Tensor:
        """log p(action) [...]; action [..., D]; saturated actions are clamped to just inside (-1, 1)."""
        edge = 1.0 - torch.finfo(action.dtype).eps / 2
        return self.log_prob_pre_tanh(action.clamp(-edge, edge).atanh())

    def log_prob_pre_tanh(self, pre_tanh: Tensor) -> Tensor:
        """log p(tanh(pre_tanh)) [...]."""
        return self.base.log_prob(pre_tanh) - _log_slope(pre_tanh).sum(-1)

    def kl(self, other: TanhGaussian) -> Tensor:
        """KL(self || other) [...], equal to that of the Gaussians, since tanh is a bijection."""
        return self.base.kl(other.base)

    def params(self) -> dict[str, Tensor]:
        """Mean and log-std, both [..., D], so that they can be recorded per step."""
        return self.base.params()

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor]) -> Self:
        """The distribution with these `params`."""
        return cls(params["mean"], params["log_std"])


Distribution = TypeVar("Distribution", Categorical, MultiCategorical, Gaussian, TanhGaussian)
"""Any of these classes, the same one throughout a signature."""
