import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import chisquare

from starling.errors import UserError
from starling.replay.samplers import SMALLEST_PRIORITY, Fifo, Prioritized, Uniform, build, takes_priorities
from starling.replay.spec import TableSpec


def slots(*numbers):
    return np.array(numbers, np.int64)


def test_fifo_draws_the_oldest_items_up_to_their_maximal_uses():
    queue, rng = Fifo(max_times_sampled=2), np.random.default_rng(0)
    queue.add(slots(5, 3, 9), None)
    assert queue.draw(4, rng) is None
    first = queue.draw(2, rng)
    assert first.slots.tolist() == [5, 3]
    assert first.spent.tolist() == []
    assert first.probability.tolist() == [1 / 3, 1 / 3]
    second = queue.draw(3, rng)
    assert second.slots.tolist() == [5, 3, 9]
    assert second.spent.tolist() == [5, 3]
    assert queue.size == 1
    queue.remove(slots(9))
    assert queue.draw(1, rng) is None
    queue.check_valid()


def batches(queue, n, draws):
    return [queue.draw(n, np.random.default_rng(0)).slots.tolist() for _ in range(draws)]


def test_circular_buffer_alternates_its_batches():
    """Two batches of two with three uses each: they alternate; a third one enters when one has had its last use."""
    queue = Fifo(max_times_sampled=3, buffer=2)
    queue.add(slots(1, 2, 3, 4, 5, 6, 7, 8), None)
    a, b, c, d = [1, 2], [3, 4], [5, 6], [7, 8]
    assert batches(queue, 2, 12) == [a, b, a, b, a, b, c, d, c, d, c, d]
    assert queue.size == 0


def test_batch_added_later_alternates_with_earlier_ones():
    queue = Fifo(max_times_sampled=3, buffer=2)
    queue.add(slots(1, 2), None)
    first = queue.draw(2, np.random.default_rng(0))
    queue.add(slots(3, 4), None)
    assert first.slots.tolist() == [1, 2]
    assert batches(queue, 2, 5) == [[1, 2], [3, 4], [1, 2], [3, 4], [3, 4]]
    assert queue.draw(2, np.random.default_rng(0)) is None
    queue.check_valid()


def test_uniform_draws_uniformly_and_reports_the_probability():
    sampler, rng = Uniform(100), np.random.default_rng(0)
    assert sampler.draw(1, rng) is None
    sampler.add(np.arange(40), None)
    sampler.remove(np.arange(0, 40, 2))
    draw = sampler.draw(20_000, rng)
    assert (draw.probability == 1 / 20).all()
    assert chisquare(np.bincount(draw.slots, minlength=40)[1::2]).pvalue > 0.01
    assert set(draw.slots.tolist()) == set(range(1, 40, 2))


def test_prioritized_draws_in_proportion_to_priority_to_the_exponent():
    sampler, rng = Prioritized(64, exponent=0.5), np.random.default_rng(0)
    priorities = np.random.default_rng(1).random(50) * 4
    sampler.add(np.arange(50), priorities)
    sampler.remove(np.arange(0, 50, 5))
    live = np.arange(50) % 5 != 0
    want = np.where(live, priorities**0.5, 0)
    want /= want.sum()
    draws = [sampler.draw(32, rng) for _ in range(5000)]
    drawn = np.concatenate([draw.slots for draw in draws])
    np.testing.assert_allclose(draws[0].probability, want[draws[0].slots], rtol=1e-12)
    counts = np.bincount(drawn, minlength=50)
    assert not counts[~live].any()
    assert chisquare(counts[live], want[live] * len(drawn)).pvalue > 0.01
    sampler.check_valid()


def test_new_items_get_the_largest_priority_seen():
    sampler = Prioritized(8, exponent=1.0)
    sampler.add(slots(0), None)
    sampler.add(slots(1), np.array([6.0]))
    sampler.update(slots(1), np.array([2.0]))
    sampler.add(slots(2), None)
    draw = sampler.draw(1000, np.random.default_rng(0))
    by_slot = dict(zip(draw.slots.tolist(), draw.probability.tolist(), strict=True))
    assert by_slot == {0: 1 / 9, 1: 2 / 9, 2: 6 / 9}


@pytest.mark.parametrize("bad", [0.0, -3.0, np.nan, np.inf, -np.inf])
def test_unusable_priorities_become_the_smallest(bad):
    sampler = Prioritized(8, exponent=1.0)
    sampler.add(slots(0, 1), np.array([1.0, bad]))
    sampler.check_valid()
    assert sampler.size == 2
    assert sampler.priorities(slots(0, 1)).tolist() == [1.0, SMALLEST_PRIORITY]
    sampler.add(slots(2), None)  # and they do not count as the largest seen
    assert sampler.draw(64, np.random.default_rng(0)).probability.max() == pytest.approx(0.5, rel=1e-5)


def test_empty_prioritized_sampler_draws_nothing():
    sampler = Prioritized(8, exponent=0.6)
    sampler.add(slots(1, 2), None)
    sampler.remove(slots(1, 2))
    assert sampler.draw(4, np.random.default_rng(0)) is None
    sampler.check_valid()


@pytest.mark.parametrize("name", ["fifo", "uniform", "prioritized", "ranked"])
def test_restored_sampler_continues_identically(name):
    spec = TableSpec("t", "slots", length=1, batch=4, capacity=50, sampler=name, max_times_sampled=2)
    one, other = build(spec, 50), build(spec, 50)
    one.add(np.arange(30), None)
    one.update(np.arange(5), np.arange(5.0) + 1)
    one.draw(6, np.random.default_rng(0))
    one.remove(np.arange(10, 15))
    other.set_state(one.get_state())
    for sampler in (one, other):
        sampler.add(np.arange(40, 45), None)
        sampler.check_valid()
    for seed in range(3):
        a, b = (sampler.draw(7, np.random.default_rng(seed)) for sampler in (one, other))
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_unknown_sampler_is_rejected_with_a_hint():
    with pytest.raises(UserError, match="prioritized"):
        build(TableSpec("t", "ring", length=1, batch=1, capacity=5, sampler="priority"), 5)


def test_user_sampler_is_created_with_the_spec_and_number_of_slots(tmp_path, monkeypatch):
    (tmp_path / "latest_first.py").write_text(
        "class Latest:\n    def __init__(self, spec, slots):\n        self.made_with = (spec.name, slots)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = TableSpec("t", "ring", length=1, batch=1, capacity=5, sampler="latest_first:Latest")
    assert build(spec, 7).made_with == ("t", 7)
    assert takes_priorities(spec)
    with pytest.raises(UserError, match=r"latest_first' has no 'Last'.*'Latest'"):
        build(TableSpec("t", "ring", length=1, batch=1, capacity=5, sampler="latest_first:Last"), 5)


def test_numba_is_imported_only_for_priorities():
    code = "import sys, starling.replay.mixture; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
