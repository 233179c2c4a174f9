"""Settings of the algorithms, apart from their code so that they can be checked before torch is imported."""

from __future__ import annotations

from starling.registry import Entry, Registry

ALGORITHMS = Registry(
    "algorithm",
    {
        "dqn": Entry("starling.config.algo.dqn:DQNConfig", "deep Q-learning; double, dueling, n-step, prioritized"),
        "impala": Entry(
            "starling.config.algo.impala:IMPALAConfig", "V-trace behind actors that run ahead, recurrent or not"
        ),
        "ppo": Entry("starling.config.algo.ppo:PPOConfig", "proximal policy optimisation, recurrent or not"),
    },
)
"""Built-in names stand for a config class (which names its algorithm); a user's own name for an algorithm class,
whose attribute `Config` is its config class."""
