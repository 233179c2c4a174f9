"""Actors many updates behind the learner: V-trace still learns, the uncorrected loss does not."""

import pytest

from starling.config.load import load
from starling.experiment.run_folder.metrics import Scoreboard
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

SETTINGS = [
    *[
        "env={id: support.delayed_actors:Corridor, num: 8}",
        "net.torso.hidden=[]",
        "stop.return=null",
        "algo.entropy_coef=0",
    ],
    *["algo.batch=4", "algo.unroll=8", "algo.discount=0.95", "algo.clip_rho=4", "algo.clip_c=4"],
    "algo.optimizer={name: SGD, args: {lr: 0.003}, clip_norm: 1000}",
]
STEPS = 6000


def score(algorithm, delay, seed):
    """The mean return of the last 50 episodes."""
    settings = [f"algo.name=support.delayed_actors:{algorithm}", *SETTINGS, f"algo.delay={delay}", f"seed={seed}"]
    runtime = build_runtime(RunPlan.from_config(load("impala-cartpole", settings)))
    scores = Scoreboard(window=50)
    for _ in runtime.run():
        scores.add(runtime.episodes())
        if runtime.env_steps >= STEPS:
            break
    runtime.close()
    return scores.mean


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_with_actors_40_updates_behind_only_the_corrected_loss_learns(seed):
    """The best return is -11.6; a deterministic policy never reaches the end and gets -60."""
    assert score("Delayed", 40, seed) > -20
    assert score("Uncorrected", 40, seed) < -40


def test_without_delay_both_losses_learn():
    assert score("Uncorrected", 0, 0) > -20
