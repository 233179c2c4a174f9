"""NGU and Agent57 find a treasure that epsilon-greedy exploration does not."""

import pytest

SIZE = 12
SETTINGS = [
    *[f"env.args={{size: {SIZE}, mapping_seed: 14}}", "env.num=4"],  # actions that lead on differ from step to step
    *[f"algo.unroll={SIZE}", f"algo.period={SIZE}", f"algo.fragment={SIZE}"],  # a sequence is an episode
    *[f"algo.curious_steps={SIZE}", f"algo.episodic.capacity={SIZE}", "algo.lifelong.optimizer.args.lr=0.001"],
    *["stop.env_steps=30000", "stop.return=0.5"],
]


@pytest.mark.parametrize("preset", ["ngu-deepsea", "agent57-deepsea"])
def test_the_treasure_of_the_deep_sea_is_found_by_novelty_alone(trial, preset):
    """Only 12 right moves in a row reach the treasure of 1, and each costs: a chance of 2^-12 per episode at random.

    In 2500 episodes even a uniformly random policy would more likely than not find nothing. The control follows the
    same family of policies, with novelty weighed 0: R2D2 with its epsilons. It learns to save the cost of moves.
    """
    novel = trial("novelty=0.02", preset, [*SETTINGS, "algo.novelty=0.02"])
    greedy = trial("novelty=0", preset, [*SETTINGS, "algo.novelty=0"])
    assert novel >= 0.5
    assert greedy < 0.1
