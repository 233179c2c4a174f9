"""With CLEAR, an agent does not forget a first task while it learns a second one."""

from continual import NUM_ENVS, train
from support.training_scores import Stopwatch

PERIOD = 2_000  # steps of every env in each task


def test_only_replay_with_cloning_keeps_the_first_task(record, seed):
    """Scores are probabilities of the right answer to the first task, after the second was learned.

    The second task has other answers to the same symbols, and a flag tells the tasks apart. New unrolls alone overwrite
    the first answers. Replay counteracts this, but less and less: V-trace weights a replayed action by its probability
    under the current policy. Cloning also restores what was forgotten.
    """
    learned, kept, second = {}, {}, {}
    for arm in ("new unrolls alone", "half replayed", "half replayed and cloned"):
        stopwatch = Stopwatch()
        (learned[arm], _), (kept[arm], second[arm]) = train(arm, seed, PERIOD)
        record(arm, score=kept[arm], env_steps=2 * PERIOD * NUM_ENVS, **stopwatch.read())
    assert min(learned.values()) > 0.8
    assert min(second.values()) > 0.5
    assert kept["new unrolls alone"] < 0.1
    assert kept["half replayed"] < 0.55
    assert kept["half replayed and cloned"] > 0.7
