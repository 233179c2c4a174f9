import dataclasses

import numpy as np
import pytest
from support.store_streams import Stream, assert_same, column, make_envs, make_layout

from starling.errors import UserError
from starling.replay.mixture import Mixture
from starling.replay.spec import TableSpec
from starling.replay.table import Table

LAYOUT = make_layout()


def spec(name, sampler, **changes):
    shared = {"storage": "slots", "length": 3, "fragment": 3, "batch": 8, "capacity": 40, "sampler": sampler}
    return TableSpec(name, **shared | changes)


def make_mixture(shares=(0.25, 0.75), **changes):
    new, old = shares
    specs = [spec("new", "fifo", share=new), spec("old", "prioritized", share=old, **changes)]
    return Mixture([Table(s, LAYOUT, num_envs=2, seed=0, index=i) for i, s in enumerate(specs)])


def make_stream(seed=0):
    return Stream(make_envs(seed, 2, LAYOUT), np.arange(2), LAYOUT)


def test_batch_is_composed_by_shares_and_has_the_source_of_each_item():
    mixture, stream = make_mixture(), make_stream()
    for _ in range(6):
        mixture.insert(stream.fragment(3))
    twins = make_mixture()
    twins.set_state(mixture.get_state())
    sample = mixture.sample(8)
    assert sample.source.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert sample.keys.table.tolist() == sample.source.tolist()
    assert sample.table_size.tolist() == [12] * 8
    separate = [twins.tables[0].sample(2), twins.tables[1].sample(6)]
    separate_items = [column(part.trajectory, b) for part in separate for b in range(part.trajectory.batch_size)]
    for b, item in enumerate(separate_items):
        assert_same(item, column(sample.trajectory, b))
    assert mixture.sizes == (10, 12)


def test_no_batch_while_one_table_is_below_its_min_size():
    mixture, stream = make_mixture(min_size=5), make_stream()
    mixture.insert(stream.fragment(3))
    mixture.insert(stream.fragment(3))
    assert mixture.sample(8) is None
    assert mixture.sizes == (4, 4)
    mixture.insert(stream.fragment(3))
    assert mixture.sample(8) is not None


def test_priorities_and_evictions_go_to_the_table_in_the_key():
    mixture, stream = make_mixture(), make_stream()
    for _ in range(6):
        new, old = mixture.insert(stream.fragment(3))
    both = dataclasses.replace(
        new, **{f: np.concatenate([getattr(new, f), getattr(old, f)]) for f in ("shard", "table", "slot", "generation")}
    )
    mixture.reprioritize(both, np.array([9.0, 9.0, 1e6, 1e6]))
    sample = mixture.sample(8)
    assert set(sample.keys.slot[2:].tolist()) >= set(old.slot.tolist())
    assert sample.probability[2:].max() > 0.4
    for table in mixture.tables:
        table.evict(both)
    assert mixture.sizes == (8, 10)
    mixture.check_valid()


def test_single_table_gives_its_own_sample():
    table = Table(spec("new", "fifo"), LAYOUT, num_envs=2, seed=0)
    mixture = Mixture([table])
    mixture.insert(make_stream().fragment(3))
    assert mixture.sample(3) is None
    assert mixture.sample(2).source.tolist() == [0, 0]
    assert mixture.steps == table.steps > 0


def test_table_with_share_0_is_not_sampled():
    mixture, stream = make_mixture(shares=(1.0, 0.0)), make_stream()
    mixture.insert(stream.fragment(3))
    assert mixture.sample(2).source.tolist() == [0, 0]


def test_tables_with_different_lengths_or_wrong_indices_are_rejected():
    tables = [Table(spec("a", "fifo"), LAYOUT, 2, 0, index=0)]
    with pytest.raises(UserError, match="one length"):
        Mixture([*tables, Table(spec("b", "uniform", length=4, fragment=4), LAYOUT, 2, 0, index=1)])
    with pytest.raises(ValueError, match="numbered"):
        Mixture([*tables, *tables])
