"""Tables of several learners: together they are the tables of one."""

import numpy as np
import pytest

from starling.errors import UserError
from starling.replay.limiter import Limiter
from starling.replay.spec import TableSpec
from starling.replay.store import shard_rows, shard_specs

REPLAY = TableSpec("replay", "ring", length=1, batch=32, capacity=1000, min_size=100, updates_per_step=0.25)


def test_every_env_row_is_in_one_shard_whoever_acts_for_it():
    assert [rows.tolist() for rows in shard_rows(5, 2)] == [[0, 1, 2], [3, 4]]


def test_shards_are_parts_of_the_whole():
    for rows, shards in [(8, 2), (5, 2), (6, 3)]:
        parts = [specs[0] for specs in shard_specs([REPLAY], rows, shards)] if 32 % shards == 0 else []
        assert sum(part.batch for part in parts) in (0, 32)
        assert all(part.capacity >= 1000 * len(mine) / rows for part, mine in zip(parts, shard_rows(rows, shards)))  # noqa: B905
    assert shard_specs([REPLAY], 8, 1) == [(REPLAY,)]


@pytest.mark.parametrize(("rows", "shards"), [(8, 2), (5, 2), (7, 4)])
def test_together_shards_allow_as_many_batches_as_one_table_does(rows, shards):
    """Every batch takes a part from each shard, so the shard that allows least decides."""
    whole = Limiter([REPLAY], rows)
    parts = [
        Limiter(specs, len(mine))
        for specs, mine in zip(shard_specs([REPLAY], rows, shards), shard_rows(rows, shards), strict=True)
    ]
    mine = [len(each) for each in shard_rows(rows, shards)]
    batches = {"whole": 0, "parts": 0}
    for limiter, size in [(whole, 200), *[(part, 200) for part in parts]]:
        limiter.may_sample([size])
    for _ in range(50):
        whole.begin(rows)
        whole.inserted(rows * 4, rows)
        for part, count in zip(parts, mine, strict=True):
            part.begin(count)
            part.inserted(count * 4, count)
        while whole.may_sample([200]):
            whole.sampled()
            batches["whole"] += 1
        while all(part.may_sample([200]) for part in parts):
            for part in parts:
                part.sampled()
            batches["parts"] += 1
    assert batches["whole"] == 1 + rows * 4 * 50 // 4
    assert batches["parts"] == batches["whole"]


def test_what_cannot_be_dealt_is_refused():
    with pytest.raises(UserError, match="a batch of 32 cannot be divided equally among learners=3"):
        shard_specs([REPLAY], 6, 3)
    with pytest.raises(UserError, match="learners=4 are more than"):
        shard_specs([REPLAY], 2, 4)


def test_rows_are_numpy_integers_of_all_rows():
    np.testing.assert_array_equal(np.concatenate(shard_rows(7, 3)), np.arange(7))
