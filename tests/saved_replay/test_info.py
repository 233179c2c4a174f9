"""What `describe` counts, against looking at all steps in one go."""

import numpy as np
import pytest

from starling import tree
from starling.experiment.saved_replay import steps as steps_module
from starling.experiment.saved_replay.steps import read_steps
from starling.replay.table_bytes import table_bytes
from starling.tools.replay.info import describe, held_bytes, histogram


def slow_episodes(steps):
    """Returns of stretches that begin with `first` and whose last step is an end."""
    found, begin = [], 0
    for i in np.nonzero(~steps.valid)[0]:
        stretch = slice(begin, i)
        if steps.first[begin] and (steps.terminated | steps.truncated)[i - 1]:
            found.append((steps.rewards["extrinsic"][stretch].sum(), i - begin))
        begin = i + 1
    return found


@pytest.mark.parametrize("name", ["cartpole", "wrapped", "pong", "memory"])
def test_episodes_and_ages_are_those_of_the_steps(name, saved, monkeypatch):
    monkeypatch.setattr(steps_module, "AT_ONCE", 24)
    replay = saved(name)
    (table,) = replay.store.mixture.tables
    steps = tree.concat(list(read_steps(table)), axis=0)
    (found,) = describe(replay)
    episodes = slow_episodes(steps)
    assert found.episodes == len(episodes) > 1
    assert found.mean_return == pytest.approx(np.mean([total for total, _ in episodes]))
    assert found.mean_length == pytest.approx(np.mean([length for _, length in episodes]))
    assert found.items == table.size
    assert found.steps == steps.valid.sum()
    assert found.age.most == (replay.updates - steps.policy_version[steps.valid]).max()


def test_memory_is_what_the_table_was_planned_to_hold(saved):
    replay = saved("cartpole")
    (table,) = replay.store.mixture.tables
    assert held_bytes(table) == pytest.approx(table_bytes(table.spec, replay.layout, 2, 300).held, rel=0.05)


def test_a_histogram_counts_every_priority_once():
    priorities = np.concatenate([np.full(5, 1e-6), np.geomspace(0.01, 1.0, 50), [7.0]])
    found = histogram(priorities)
    assert sum(found.counts) == 56
    assert found.counts[0] == 5
    assert found.counts[-1] == 1
    assert (found.edges[0], found.edges[-1]) == (pytest.approx(1e-6), pytest.approx(7.0))
    assert histogram(np.full(3, 2.0)).counts == [3]
