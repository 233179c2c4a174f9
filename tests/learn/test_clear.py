"""CLEAR keeps a first task while a second is learned."""

from continual import ROWS, train
from support.training_scores import Stopwatch

PERIOD = 2_000  # steps of every env in each task


def test_only_cloned_replay_keeps_the_first_task(record, seed):
    """Scores are probabilities of the right answer to the first task, after the second was learned.

    The second task has other answers to the same symbols, and a flag tells the tasks apart. New unrolls alone overwrite
    the first answers. Replayed ones counteract it, less and less: V-trace weighs them by how likely the present policy
    makes what was done. Cloning also pulls back what is forgotten.
    """
    learned, kept, second = {}, {}, {}
    for arm in ("new unrolls alone", "half replayed", "half replayed and cloned"):
        stopwatch = Stopwatch()
        (learned[arm], _), (kept[arm], second[arm]) = train(arm, seed, PERIOD)
        record(arm, score=kept[arm], env_steps=2 * PERIOD * ROWS, **stopwatch.read())
    assert min(learned.values()) > 0.8
    assert min(second.values()) > 0.5
    assert kept["new unrolls alone"] < 0.1
    assert kept["half replayed"] < 0.55
    assert kept["half replayed and cloned"] > 0.7
