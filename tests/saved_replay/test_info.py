"""The counts of `describe` compared with a scan of all steps."""

import numpy as np
import pytest

from starling import tree
from starling.experiment.saved_replay import steps as steps_module
from starling.experiment.saved_replay.steps import read_steps
from starling.replay.table_bytes import table_bytes
from starling.tools.replay.info import describe, held_bytes, histogram


def slow_episodes(steps):
    """Returns and lengths of segments that begin with `first` and end with an episode end."""
    description, begin = [], 0
    for i in np.nonzero(~steps.valid)[0]:
        segment = slice(begin, i)
        if steps.first[begin] and (steps.terminated | steps.truncated)[i - 1]:
            description.append((steps.rewards["extrinsic"][segment].sum(), i - begin))
        begin = i + 1
    return description


@pytest.mark.parametrize("name", ["cartpole", "wrapped", "pong", "memory"])
def test_description_matches_the_stored_steps(name, saved, monkeypatch):
    monkeypatch.setattr(steps_module, "AT_ONCE", 24)
    replay = saved(name)
    (table,) = replay.store.mixture.tables
    steps = tree.concat(list(read_steps(table)), axis=0)
    (description,) = describe(replay)
    episodes = slow_episodes(steps)
    assert description.episodes == len(episodes) > 1
    assert description.mean_return == pytest.approx(np.mean([total for total, _ in episodes]))
    assert description.mean_length == pytest.approx(np.mean([length for _, length in episodes]))
    assert description.items == table.size
    assert description.steps == steps.valid.sum()
    assert description.age.most == (replay.updates - steps.policy_version[steps.valid]).max()


def test_memory_matches_the_planned_size(saved):
    replay = saved("cartpole")
    (table,) = replay.store.mixture.tables
    assert held_bytes(table) == pytest.approx(table_bytes(table.spec, replay.layout, 2, 300).held, rel=0.05)


def test_histogram_counts_every_priority_once():
    priorities = np.concatenate([np.full(5, 1e-6), np.geomspace(0.01, 1.0, 50), [7.0]])
    description = histogram(priorities)
    assert sum(description.counts) == 56
    assert description.counts[0] == 5
    assert description.counts[-1] == 1
    assert (description.edges[0], description.edges[-1]) == (pytest.approx(1e-6), pytest.approx(7.0))
    assert histogram(np.full(3, 2.0)).counts == [3]
