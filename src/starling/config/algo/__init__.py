"""Settings of the algorithms, separate from their code so that they can be checked without importing torch."""

from __future__ import annotations

from starling.registry import Entry, Registry

ALGORITHMS = Registry(
    "algorithm",
    {
        "apex": Entry(
            "starling.config.algo.apex:ApeXConfig", "DQN whose env rows have their own epsilons and priorities"
        ),
        "dqn": Entry("starling.config.algo.dqn:DQNConfig", "deep Q-learning; double, dueling, n-step, prioritized"),
        "impact": Entry(
            "starling.config.algo.impact:IMPACTConfig", "PPO against a target policy, each batch used several times"
        ),
        "impala": Entry(
            "starling.config.algo.impala:IMPALAConfig",
            "V-trace behind actors that run ahead, recurrent or not; mixes in old unrolls",
        ),
        "ngu": Entry(
            "starling.config.algo.ngu:NGUConfig", "R2D2 with a family of policies that follow novelty more or less"
        ),
        "ppo": Entry("starling.config.algo.ppo:PPOConfig", "proximal policy optimisation, recurrent or not"),
        "pqn": Entry(
            "starling.config.algo.pqn:PQNConfig", "Q(lambda) from parallel envs, without replay and target network"
        ),
        "r2d2": Entry(
            "starling.config.algo.r2d2:R2D2Config", "Ape-X with memory: replayed sequences, burn-in, Retrace"
        ),
        "sac": Entry("starling.config.algo.sac:SACConfig", "soft actor-critic, for continuous or discrete actions"),
    },
)
"""Built-in names refer to a config class, which names its algorithm; user-defined names refer to an algorithm class,
whose attribute `Config` is its config class."""
