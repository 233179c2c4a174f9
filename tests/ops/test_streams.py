from dataclasses import replace

import pytest
import torch

from starling.ops.returns import gae, lambda_return, n_step_return, window_return
from starling.ops.streams import stream_terms
from starling.types import StreamSpec, Trajectory

RND = StreamSpec(name="rnd", discount=0.9, lambda_=0.8, episodic=False)
EXTRINSIC = StreamSpec(discount=0.99, lambda_=0.95)


def as_trajectory(rollout):
    rows = rollout.r_t.shape[1]
    return Trajectory(
        obs=None,
        first=torch.zeros(rollout.v.shape, dtype=torch.bool),
        action=None,
        rewards={"extrinsic": rollout.r_t, "rnd": rollout.r_t.square()},
        terminated=rollout.terminated_t,
        truncated=rollout.truncated_t,
        valid=rollout.valid_t,
        extras={},
        carry=None,
        policy_version=torch.zeros(rows, dtype=torch.int64),
    )


def test_episodic_stream_ends_only_at_termination(make_rollout):
    rollout = make_rollout(0)
    assert rollout.terminated_t.any()
    assert rollout.truncated_t.any()
    terms = stream_terms(as_trajectory(rollout), EXTRINSIC)
    assert (terms.discount_t[rollout.terminated_t] == 0).all()
    assert (terms.discount_t[~rollout.terminated_t] == 0.99).all()
    assert terms.lambda_t == 0.95
    assert terms.valid_t.equal(rollout.valid_t)
    assert terms.acted_t.equal(rollout.valid_t)
    assert terms.r_t[rollout.valid_t].equal(rollout.r_t[rollout.valid_t])
    assert terms.r_t.dtype == rollout.r_t.dtype


def test_non_episodic_stream_continues_through_resets(make_rollout):
    rollout = make_rollout(0)
    terms = stream_terms(as_trajectory(rollout), RND)
    valid = rollout.valid_t
    assert (~valid).any()
    assert (terms.discount_t[valid] == 0.9).all()
    assert (terms.lambda_t[valid] == 0.8).all()
    assert (terms.r_t[~valid] == 0).all()
    assert (terms.discount_t[~valid] == 1).all()
    assert (terms.lambda_t[~valid] == 1).all()
    assert terms.valid_t.all()
    assert terms.acted_t.equal(valid)


def test_non_episodic_stream_of_a_sequence_treats_an_episode_end_as_truncation(make_rollout):
    rollout = make_rollout(0)
    steps = as_trajectory(rollout)
    sequence_terms, truncated = stream_terms(steps, RND, crosses_episodes=False), replace(RND, episodic=True)
    steps.terminated.zero_()
    for mine, other in zip(vars(sequence_terms).values(), vars(stream_terms(steps, truncated)).values(), strict=True):
        assert mine.equal(other) if torch.is_tensor(mine) else mine == other


def without_resets(rollout, row):
    """One env as if no episode had ended: which steps are valid, their rewards, and their values."""
    keep = rollout.valid_t[:, row]
    r = rollout.r_t[keep, row].square()
    v_t = rollout.v_t[keep, row]
    return keep, r, v_t


def test_non_episodic_return_is_that_of_one_endless_episode(make_rollout):
    rollout = make_rollout(3)
    endless = StreamSpec(name="rnd", discount=0.9, lambda_=1.0, episodic=False)
    terms = stream_terms(as_trajectory(rollout), endless)
    args = (terms.r_t, terms.discount_t, rollout.v_t, rollout.v_tp1)
    full_return = lambda_return(*args, terms.lambda_t, terms.valid_t)
    advantage = gae(*args, terms.lambda_t, terms.valid_t)
    sequence_terms = window_return(terms.r_t, terms.discount_t, rollout.v[-1], terms.valid_t)
    n_step = n_step_return(*args, len(rollout.r_t), terms.valid_t)
    for row in range(rollout.r_t.shape[1]):
        keep, r, v_t = without_resets(rollout, row)
        assert not keep.all()
        g, expected = rollout.v[-1, row], []
        for reward in reversed(r):
            g = reward + 0.9 * g
            expected.insert(0, g)
        expected = torch.stack(expected)
        torch.testing.assert_close(full_return[keep, row], expected)
        torch.testing.assert_close(advantage[keep, row], expected - v_t)
        torch.testing.assert_close(sequence_terms[row], expected[0])
        torch.testing.assert_close(n_step[keep, row], expected)


def test_unknown_stream_is_rejected(make_rollout):
    with pytest.raises(ValueError, match="no rewards of stream 'icm', only \\['extrinsic', 'rnd'\\]"):
        stream_terms(as_trajectory(make_rollout()), StreamSpec(name="icm"))
