"""A table that ranks what it holds: candidates, uses, elite insertion, and what a checkpoint keeps of them."""

import numpy as np
import pytest
from scipy.stats import chisquare
from support.store_streams import Stream, make_envs, make_layout

from starling.errors import UserError
from starling.replay.limiter import check
from starling.replay.spec import TableSpec
from starling.replay.table import Table

LAYOUT = make_layout()


def make_table(**changes):
    shared = {"storage": "slots", "length": 3, "fragment": 3, "batch": 4, "capacity": 24, "sampler": "ranked"}
    return Table(TableSpec("elite", **shared | {"candidate_factor": 3.0} | changes), LAYOUT, rows=2, seed=0)


def filled(fragments=12, **changes):
    table, stream = make_table(**changes), Stream(make_envs(0, 2, LAYOUT), np.arange(2), LAYOUT)
    for _ in range(fragments):
        table.insert(stream.fragment(3))
    return table, stream


def test_candidates_are_different_and_uniform():
    table, _ = filled()
    counts = np.zeros(24)
    for _ in range(2000):
        slots = table.draw_candidates(4, 0.0).keys.slot
        assert len(set(slots.tolist())) == 12
        counts[slots] += 1
    assert chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 24), (0.5, 19), (1.0, 14), (2.0, 4), (3.0, 4)])
def test_candidates_fall_to_the_items_themselves(fraction, expected):
    """From lambda 6 to 1 over 2.0 times the run: 6, 4.75, 3.5, 1."""
    spec = TableSpec("e", "slots", 1, 4, 100, sampler="ranked", candidate_factor=6.0, anneal=2.0)
    assert spec.candidates_for(4, fraction) == expected


def test_without_annealing_they_stay():
    assert TableSpec("e", "slots", 1, 4, 100, sampler="ranked", candidate_factor=6.0).candidates_for(4, 1.0) == 24


def test_the_picked_items_are_those_of_the_ranking_with_all_that_belongs_to_them():
    table, _ = filled()
    candidates = table.draw_candidates(4, 0.0)
    distances = np.random.default_rng(1).random(12)
    picked = table.select(candidates, 4, distances)
    best = np.argsort(distances)[:4]
    assert picked.keys.slot.tolist() == candidates.keys.slot[best].tolist()
    np.testing.assert_array_equal(picked.trajectory.valid, candidates.trajectory.valid[:, best])
    np.testing.assert_array_equal(picked.trajectory.policy_version, candidates.trajectory.policy_version[best])
    assert picked.source.tolist() == [0] * 4


def test_least_sampled_items_come_in_turns():
    table, _ = filled(selection="least_sampled", candidate_factor=6.0)
    seen = np.concatenate(
        [table.select(table.draw_candidates(4, 0.0), 4, np.arange(24.0)).keys.slot for _ in range(12)]
    )
    assert np.bincount(seen, minlength=24).tolist() == [2] * 24


def test_a_new_item_in_an_old_slot_was_never_picked():
    table, stream = filled(selection="least_sampled", candidate_factor=6.0)
    for _ in range(6):
        table.select(table.draw_candidates(4, 0.0), 4, np.zeros(24))
    born = table.insert(stream.fragment(3)).slot
    assert set(born.tolist()) <= set(table.select(table.draw_candidates(4, 0.0), 4, np.zeros(24)).keys.slot.tolist())


def test_candidates_that_were_overwritten_meanwhile_can_be_learnt_from_and_are_not_counted():
    table, stream = filled()
    candidates = table.draw_candidates(4, 0.0)
    for _ in range(12):
        table.insert(stream.fragment(3))
    picked = table.select(candidates, 4, np.arange(12.0))
    assert picked.keys.slot.tolist() == candidates.keys.slot[:4].tolist()
    assert table.counters["stale"] == 12
    assert table._ranked.uses(np.arange(24)).sum() == 0


def test_when_full_the_farthest_give_way_and_not_the_oldest():
    table, stream = filled(contest=24, candidate_factor=6.0)
    distances = np.random.default_rng(2).permutation(24).astype(float)
    candidates = table.draw_candidates(4, 0.0)
    table.select(candidates, 4, distances)
    far = dict(zip(candidates.keys.slot.tolist(), distances.tolist(), strict=True))
    born = table.insert(stream.fragment(3)).slot  # two rows: each against half of the table
    assert max(far.values()) in [far[slot] for slot in born.tolist()]
    assert min(far[slot] for slot in born.tolist()) > 10
    assert (table.size, table.counters["evicted"], table.counters["full"]) == (24, 2, 0)
    table.check_valid()


def test_without_a_contest_the_oldest_give_way():
    table, stream = filled()
    first = table._storage._born.argsort()[:2]
    assert sorted(table.insert(stream.fragment(3)).slot.tolist()) == sorted(first.tolist())
    assert (table.counters["evicted"], table.counters["full"]) == (0, 2)


def test_a_restored_table_goes_on_alike():
    one, stream = filled(selection="grouped", contest=5)
    one.select(one.draw_candidates(4, 0.0), 4, np.arange(12.0))
    other = make_table(selection="grouped", contest=5)
    other.set_state(one.get_state())
    for _ in range(5):
        fragment = stream.fragment(3)
        born = [table.insert(fragment).slot.tolist() for table in (one, other)]
        assert born[0] == born[1]
        scores = np.random.default_rng(len(born)).random(12)
        picks = [table.select(table.draw_candidates(4, 0.2), 4, scores).keys.slot.tolist() for table in (one, other)]
        assert picks[0] == picks[1]


def test_a_capacity_below_the_candidates_is_refused():
    spec = TableSpec("elite", "slots", 3, 32, 90, sampler="ranked", fragment=3, candidate_factor=6.0, share=0.5)
    queue = TableSpec("queue", "slots", 3, 32, 90, sampler="fifo", fragment=3, share=0.5)
    with pytest.raises(UserError, match=r"capacity 90 is below the 96 candidates \(6 x 16\) of a batch"):
        check([queue, spec], 4, [4])
