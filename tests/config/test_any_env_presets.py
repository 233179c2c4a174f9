"""The preset of each algorithm for any env, on envs of different kinds."""

import pytest

import starling
from starling.config.algorithms import ALGORITHMS
from starling.config.load import load

ENVS = {
    "vector": "Acrobot-v1",
    "image": "MinAtar/Freeway-v1",
    "index": "FrozenLake-v1",
    "dict": "toy/dict",
    "continuous": "MountainCarContinuous-v0",
}
CONTINUOUS = ("ppo", "sac")
CASES = [(name, kind) for name, _ in ALGORITHMS for kind in ENVS if kind != "continuous" or name in CONTINUOUS]
SEQUENCES = ["algo.learning_starts=4", "algo.batch=2", "algo.updates_per_step=0.01", "stop.env_steps=400"]
SMALLER = {
    "r2d2": SEQUENCES,
    "ngu": [*SEQUENCES, "algo.policies=2", "algo.episodic.capacity=50"],
    "ppo": ["algo.rollout=8", "algo.minibatches=2"],
    "pqn": ["algo.rollout=8", "algo.minibatches=2"],
    "impala": ["algo.batch=2"],
    "impact": ["algo.batch=2", "algo.unroll=8"],
    **{name: ["algo.learning_starts=50", "algo.batch=4"] for name in ("dqn", "apex", "sac")},
}
"""Settings with which an update comes soon and is quick; all others are those of the preset."""


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_preset_trains_on_every_kind_of_env(name, kind, tmp_path):
    settings = [f"env.id={ENVS[kind]}", "env.num=4", "stop={env_steps: 200, updates: 2}", "threads=1"]
    assert starling.train(name, [*settings, *SMALLER[name]], runs=tmp_path).updates > 0


@pytest.mark.parametrize("name", [name for name, _ in ALGORITHMS])
def test_preset_is_chosen_for_no_env(name):
    config = load(name)
    assert config.algo.name == name
    assert (config.stop.return_, config.net.torso.kind, config.net.torso.hidden) == (None, "auto", None)
    assert (config.env.args, config.env.wrappers, config.env.reward_clip) == ({}, [], None)
