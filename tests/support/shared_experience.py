"""IMPALA that learns mostly from the experience of another agent with a different policy."""

from dataclasses import replace

import torch

from starling.algos.actor_critic import BEHAVIOR, choose_from
from starling.algos.impala.config import IMPALAConfig
from starling.algos.impala.mixed import MixedIMPALA
from starling.ops.distributions import Categorical

OTHER = torch.tensor([0.95, 0.05])
"""The other agent's probability of each of two actions, at any observation."""


class Shared(MixedIMPALA):
    """Acts in one eighth of the envs; in the others the other agent acts and records its own policy."""

    Config = IMPALAConfig

    def act(self, model, inputs):
        own = super().act(model, inputs)
        own_logits = own.extras[BEHAVIOR]["logits"]  # [B, 2]
        other = Categorical(OTHER.log().expand_as(own_logits))
        is_own = inputs.env_index < inputs.num_envs // 8  # [B]
        action = torch.where(is_own, own.action, choose_from(other, inputs))
        logits = torch.where(is_own[:, None], own_logits, other.logits)
        return replace(own, action=action, extras={**own.extras, BEHAVIOR: {"logits": logits}})
