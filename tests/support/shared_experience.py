"""IMPALA that mostly learns from the experience of another agent, which has another policy."""

from dataclasses import replace

import torch

from starling.algos.actor_critic import BEHAVIOUR, choose_from
from starling.algos.impala.config import IMPALAConfig
from starling.algos.impala.mixed import MixedIMPALA
from starling.ops.distributions import Categorical

OTHER = torch.tensor([0.95, 0.05])
"""The other agent's probability of each of two actions, whatever it observes."""


class Shared(MixedIMPALA):
    """Acts in one eighth of the envs; in all others the other agent acts, and what it records says so."""

    Config = IMPALAConfig

    def act(self, model, inputs):
        own = super().act(model, inputs)
        own_logits = own.extras[BEHAVIOUR]["logits"]  # [B, 2]
        other = Categorical(OTHER.log().expand_as(own_logits))
        mine = inputs.env_index < inputs.num_envs // 8  # [B]
        action = torch.where(mine, own.action, choose_from(other, inputs))
        logits = torch.where(mine[:, None], own_logits, other.logits)
        return replace(own, action=action, extras={**own.extras, BEHAVIOUR: {"logits": logits}})
