"""A table with ranked items: candidates, use counts, elite insertion, and its checkpoint state."""

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
    return Table(TableSpec("elite", **shared | {"candidate_factor": 3.0} | changes), LAYOUT, num_envs=2, seed=0)


def filled(fragments=12, **changes):
    table, stream = make_table(**changes), Stream(make_envs(0, 2, LAYOUT), np.arange(2), LAYOUT)
    for _ in range(fragments):
        table.insert(stream.fragment(3))
    return table, stream


def test_candidates_are_distinct_and_uniform():
    table, _ = filled()
    counts = np.zeros(24)
    for _ in range(2000):
        slots = table.draw_candidates(4, 0.0).keys.slot
        assert len(set(slots.tolist())) == 12
        counts[slots] += 1
    assert chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 24), (0.5, 19), (1.0, 14), (2.0, 4), (3.0, 4)])
def test_number_of_candidates_is_annealed_to_the_batch_size(fraction, expected):
    """From a factor of 6 to 1 over 2.0 times the run: 6, 4.75, 3.5, 1."""
    spec = TableSpec("e", "slots", 1, 4, 100, sampler="ranked", candidate_factor=6.0, anneal=2.0)
    assert spec.candidates_for(4, fraction) == expected


def test_without_annealing_the_number_of_candidates_is_constant():
    assert TableSpec("e", "slots", 1, 4, 100, sampler="ranked", candidate_factor=6.0).candidates_for(4, 1.0) == 24


def test_selected_items_are_the_best_ranked_with_all_their_fields():
    table, _ = filled()
    candidates = table.draw_candidates(4, 0.0)
    distances = np.random.default_rng(1).random(12)
    selected = table.select(candidates, 4, distances)
    best = np.argsort(distances)[:4]
    assert selected.keys.slot.tolist() == candidates.keys.slot[best].tolist()
    np.testing.assert_array_equal(selected.trajectory.valid, candidates.trajectory.valid[:, best])
    np.testing.assert_array_equal(selected.trajectory.policy_version, candidates.trajectory.policy_version[best])
    assert selected.source.tolist() == [0] * 4


def test_least_sampled_items_take_turns():
    table, _ = filled(selection="least_sampled", candidate_factor=6.0)
    seen = np.concatenate(
        [table.select(table.draw_candidates(4, 0.0), 4, np.arange(24.0)).keys.slot for _ in range(12)]
    )
    assert np.bincount(seen, minlength=24).tolist() == [2] * 24


def test_new_item_in_a_reused_slot_has_no_uses():
    table, stream = filled(selection="least_sampled", candidate_factor=6.0)
    for _ in range(6):
        table.select(table.draw_candidates(4, 0.0), 4, np.zeros(24))
    new_slots = table.insert(stream.fragment(3)).slot
    assert set(new_slots.tolist()) <= set(
        table.select(table.draw_candidates(4, 0.0), 4, np.zeros(24)).keys.slot.tolist()
    )


def test_overwritten_candidates_can_still_be_selected_and_are_not_counted():
    table, stream = filled()
    candidates = table.draw_candidates(4, 0.0)
    for _ in range(12):
        table.insert(stream.fragment(3))
    selected = table.select(candidates, 4, np.arange(12.0))
    assert selected.keys.slot.tolist() == candidates.keys.slot[:4].tolist()
    assert table.counters["stale"] == 12
    assert table._ranked.uses(np.arange(24)).sum() == 0


def test_with_a_contest_the_most_distant_items_are_evicted():
    table, stream = filled(contest=24, candidate_factor=6.0)
    distances = np.random.default_rng(2).permutation(24).astype(float)
    candidates = table.draw_candidates(4, 0.0)
    table.select(candidates, 4, distances)
    far = dict(zip(candidates.keys.slot.tolist(), distances.tolist(), strict=True))
    new_slots = table.insert(stream.fragment(3)).slot  # two items: each replaces the worst of half the table
    assert max(far.values()) in [far[slot] for slot in new_slots.tolist()]
    assert min(far[slot] for slot in new_slots.tolist()) > 10
    assert (table.size, table.counters["evicted"], table.counters["full"]) == (24, 2, 0)
    table.check_valid()


def test_without_a_contest_the_oldest_items_are_evicted():
    table, stream = filled()
    first = table._storage._inserted_at.argsort()[:2]
    assert sorted(table.insert(stream.fragment(3)).slot.tolist()) == sorted(first.tolist())
    assert (table.counters["evicted"], table.counters["full"]) == (0, 2)


def test_restored_table_continues_identically():
    one, stream = filled(selection="grouped", contest=5)
    one.select(one.draw_candidates(4, 0.0), 4, np.arange(12.0))
    other = make_table(selection="grouped", contest=5)
    other.set_state(one.get_state())
    for _ in range(5):
        fragment = stream.fragment(3)
        new_slots = [table.insert(fragment).slot.tolist() for table in (one, other)]
        assert new_slots[0] == new_slots[1]
        scores = np.random.default_rng(len(new_slots)).random(12)
        selections = [
            table.select(table.draw_candidates(4, 0.2), 4, scores).keys.slot.tolist() for table in (one, other)
        ]
        assert selections[0] == selections[1]


def test_capacity_below_the_number_of_candidates_is_rejected():
    spec = TableSpec("elite", "slots", 3, 32, 90, sampler="ranked", fragment=3, candidate_factor=6.0, share=0.5)
    queue = TableSpec("queue", "slots", 3, 32, 90, sampler="fifo", fragment=3, share=0.5)
    with pytest.raises(UserError, match=r"capacity 90 is below the 96 candidates \(6 x 16\) of a batch"):
        check([queue, spec], 4, [4])
