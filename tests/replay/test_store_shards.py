"""Tables of several learners are together equivalent to the tables of one."""

import numpy as np
import pytest

from starling.errors import UserError
from starling.replay.limiter import Limiter
from starling.replay.spec import TableSpec
from starling.replay.store import shard_envs, shard_specs

REPLAY = TableSpec("replay", "ring", length=1, batch=32, capacity=1000, min_size=100, updates_per_step=0.25)


def test_every_env_is_in_exactly_one_shard():
    assert [env_index.tolist() for env_index in shard_envs(5, 2)] == [[0, 1, 2], [3, 4]]


def test_shards_split_batch_and_capacity():
    for num_envs, shards in [(8, 2), (5, 2), (6, 3)]:
        parts = [specs[0] for specs in shard_specs([REPLAY], num_envs, shards)] if 32 % shards == 0 else []
        assert sum(part.batch for part in parts) in (0, 32)
        assert all(
            part.capacity >= 1000 * len(env_indices) / num_envs
            for part, env_indices in zip(parts, shard_envs(num_envs, shards))  # noqa: B905
        )
    assert shard_specs([REPLAY], 8, 1) == [(REPLAY,)]


@pytest.mark.parametrize(("num_envs", "shards"), [(8, 2), (5, 2), (7, 4)])
def test_all_shards_together_allow_as_many_batches_as_one_table(num_envs, shards):
    """Every batch has a part from each shard, so the shard that allows the fewest decides."""
    whole = Limiter([REPLAY], num_envs)
    parts = [
        Limiter(specs, len(mine))
        for specs, mine in zip(shard_specs([REPLAY], num_envs, shards), shard_envs(num_envs, shards), strict=True)
    ]
    mine = [len(each) for each in shard_envs(num_envs, shards)]
    batches = {"whole": 0, "parts": 0}
    for limiter, size in [(whole, 200), *[(part, 200) for part in parts]]:
        limiter.may_sample([size])
    for _ in range(50):
        whole.begin(num_envs)
        whole.on_inserted(num_envs * 4, num_envs)
        for part, count in zip(parts, mine, strict=True):
            part.begin(count)
            part.on_inserted(count * 4, count)
        while whole.may_sample([200]):
            whole.on_sampled()
            batches["whole"] += 1
        while all(part.may_sample([200]) for part in parts):
            for part in parts:
                part.on_sampled()
            batches["parts"] += 1
    assert batches["whole"] == 1 + num_envs * 4 * 50 // 4
    assert batches["parts"] == batches["whole"]


def test_impossible_splits_are_rejected():
    with pytest.raises(UserError, match="a batch of 32 cannot be divided equally among learners=3"):
        shard_specs([REPLAY], 6, 3)
    with pytest.raises(UserError, match="learners=4 are more than"):
        shard_specs([REPLAY], 2, 4)


def test_shards_cover_all_env_indices():
    np.testing.assert_array_equal(np.concatenate(shard_envs(7, 3)), np.arange(7))
