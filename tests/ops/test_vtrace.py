"""V-trace compared with its definition and its special cases."""

import numpy as np
import pytest
import torch

from starling.ops.returns import gae, lambda_return, n_step_return
from starling.ops.vtrace import vtrace

SEEDS = [0, 1, 2]


def log_rhos(rollout, seed=7):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=rollout.r_t.shape))


def slow_vtrace(rollout, rho, c, lam=1.0):
    """vs_s = V_s + sum_t gamma^(t-s) (prod_{i<t} c_i) rho_t delta_t, within each episode (1802.01561, eq. 1)."""
    r, d, v = rollout.r_t.numpy(), rollout.discount_t.numpy(), rollout.v.numpy()
    vs, pg = v[:-1].copy(), np.zeros_like(r)
    for b, start, stop in rollout.episodes:
        for s in range(start, stop):
            weight = 1.0
            for t in range(s, stop):
                vs[s, b] += weight * rho[t, b] * (r[t, b] + d[t, b] * v[t + 1, b] - v[t, b])
                weight *= d[t, b] * c[t, b]
        for s in range(start, stop):
            following = lam * vs[s + 1, b] + (1 - lam) * v[s + 1, b] if s + 1 < stop else v[stop, b]
            pg[s, b] = rho[s, b] * (r[s, b] + d[s, b] * following - v[s, b])
    return torch.from_numpy(vs), torch.from_numpy(pg)


def run(rollout, log_rho, **options):
    return vtrace(log_rho, rollout.r_t, rollout.discount_t, rollout.v_t, rollout.v_tp1, rollout.valid_t, **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("clip_rho", "clip_c", "lam"), [(1.0, 1.0, 1.0), (2.0, 1.2, 0.9), (float("inf"), 0.5, 0.3)])
def test_vtrace_matches_its_definition(make_rollout, seed, clip_rho, clip_c, lam):
    rollout = make_rollout(seed)
    log_rho = log_rhos(rollout)
    ratio = np.exp(log_rho.numpy())
    vs, pg = slow_vtrace(rollout, np.minimum(clip_rho, ratio), lam * np.minimum(clip_c, ratio), lam)
    out = run(rollout, log_rho, lambda_t=lam, clip_rho=clip_rho, clip_c=clip_c)
    torch.testing.assert_close(out.vs, vs)
    torch.testing.assert_close(out.pg_advantage, pg)


@pytest.mark.parametrize("seed", SEEDS)
def test_on_policy_it_is_the_n_step_return_to_the_end(make_rollout, seed):
    rollout = make_rollout(seed)
    args = (rollout.r_t, rollout.discount_t, rollout.v_t, rollout.v_tp1)
    out = run(rollout, torch.zeros_like(rollout.r_t))
    full = n_step_return(*args, len(rollout.r_t), rollout.valid_t)
    torch.testing.assert_close(out.vs, full)
    torch.testing.assert_close(out.pg_advantage, full - rollout.v_t)
    half = run(rollout, torch.zeros_like(rollout.r_t), lambda_t=0.5)
    torch.testing.assert_close(half.vs, lambda_return(*args, 0.5, rollout.valid_t))
    torch.testing.assert_close(half.vs - rollout.v_t, gae(*args, 0.5, rollout.valid_t))
    torch.testing.assert_close(half.pg_advantage, gae(*args, 0.5, rollout.valid_t))


V = [-0.793, 0.241, -1.896, 1.396, 0.638, -0.292, -0.312]
R = [0.304, -0.268, -0.226, 0.72, 0.515, -0.064]
DISCOUNT = [0.9, 0.9, 0.95, 0.0, 0.9, 0.8]
RHO = [0.918, 1.175, 0.541, 0.668, 1.73, 0.878]
RLAX = {
    (1.0, 1.0): (
        [0.408525853295, -0.96542525624, 1.3888608264, -0.451568, -0.40286832, -0.0189648],
        [0.408525853295, -0.96542525624, 1.3888608264, -0.451568, -0.40286832, -0.0189648],
    ),
    (0.9, 1.0): (
        [0.409322042919, -1.071623977354, 1.41206916376, -0.451568, -0.401161488, -0.0189648],
        [0.409322042919, -1.071623977354, 1.41206916376, -0.451568, -0.401161488, -0.0189648],
    ),
    (0.5, 2.0): (
        [0.410575508191, -1.92588886906, 1.5049025132, -0.451568, -0.67596816, -0.0189648],
        [0.410575508191, -1.807377796145, 1.5049025132, -0.451568, -0.6821980968, -0.0189648],
    ),
    (0.0, 1.0): (
        [1.2061602, -2.2154, 1.6209442, -0.451568, -0.3858, -0.0189648],
        [1.2061602, -2.2154, 1.6209442, -0.451568, -0.3858, -0.0189648],
    ),
}
"""Errors vs - v and advantages of `rlax.vtrace_td_error_and_advantage` in float64, by lambda and both clips of rho."""


@pytest.mark.parametrize(("lam", "clip"), RLAX)
def test_vtrace_matches_rlax_for_any_lambda(lam, clip):
    v, r, d, rho = (torch.tensor(x, dtype=torch.float64)[:, None] for x in (V, R, DISCOUNT, RHO))
    valid = torch.ones_like(r, dtype=torch.bool)
    out = vtrace(rho.log(), r, d, v[:-1], v[1:], valid, lambda_t=lam, clip_rho=clip, clip_c=1.0)
    errors, advantages = (torch.tensor(x, dtype=torch.float64)[:, None] for x in RLAX[lam, clip])
    torch.testing.assert_close(out.vs - v[:-1], errors, rtol=0, atol=1e-11)
    torch.testing.assert_close(out.pg_advantage, advantages, rtol=0, atol=1e-11)


@pytest.mark.parametrize("seed", SEEDS)
def test_step_outside_the_keep_mask_cuts_the_trace(make_rollout, seed):
    rollout = make_rollout(seed)
    log_rho = log_rhos(rollout)
    keep = torch.from_numpy(np.random.default_rng(seed).random(rollout.r_t.shape) < 0.6)
    weight = np.minimum(1.0, np.exp(log_rho.numpy())) * keep.numpy()
    vs, pg = slow_vtrace(rollout, weight, weight)
    out = run(rollout, log_rho, keep_t=keep)
    torch.testing.assert_close(out.vs, vs)
    torch.testing.assert_close(out.pg_advantage, pg)
    assert out.vs[~keep].equal(rollout.v_t[~keep])
    assert (out.pg_advantage[~keep] == 0).all()


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_two_episodes_in_one_rollout_equal_separate_ones(ending):
    rng = np.random.default_rng(5)
    r, v, log_rho = (torch.from_numpy(rng.normal(size=(rows, 2))) for rows in (8, 9, 8))
    d = torch.full((8, 2), 0.9, dtype=torch.float64)
    d[2] = 0.0 if ending == "terminated" else 0.9
    valid = torch.ones(8, 2, dtype=torch.bool)
    valid[3] = False
    joint = vtrace(log_rho, r, d, v[:-1], v[1:], valid)
    for part in (slice(0, 3), slice(4, 8)):
        separate = vtrace(log_rho[part], r[part], d[part], v[:-1][part], v[1:][part], valid[part])
        torch.testing.assert_close(joint.vs[part], separate.vs, rtol=0, atol=1e-12)
        torch.testing.assert_close(joint.pg_advantage[part], separate.pg_advantage, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_at_invalid_steps_are_ignored(make_rollout, seed):
    rollout = make_rollout(seed)
    valid, log_rho = rollout.valid_t, log_rhos(rollout)
    clean = run(rollout, log_rho)
    spoiled, v_t, v_tp1 = rollout.spoiled()
    huge = torch.where(valid, log_rho, 1e9)
    with_garbage = vtrace(huge, spoiled.r_t, spoiled.discount_t, v_t, v_tp1, valid)
    assert with_garbage.vs[valid].equal(clean.vs[valid])
    assert with_garbage.pg_advantage.equal(clean.pg_advantage)


def test_non_episodic_stream_takes_no_action_at_a_reset():
    """Steps 0 and 2 are real, step 1 is a reset; its action's ratio, here e^-50, must not cut the trace."""
    log_rho = torch.tensor([[0.0], [-50.0], [0.0]])
    r, d = torch.tensor([[1.0], [0.0], [3.0]]), torch.tensor([[0.5], [1.0], [0.5]])
    v, valid = torch.tensor([[0.3], [0.7], [0.9], [8.0]]), torch.ones(3, 1, dtype=torch.bool)
    acted = torch.tensor([[True], [False], [True]])
    out = vtrace(log_rho, r, d, v[:-1], v[1:], valid, acted_t=acted, keep_t=acted)
    torch.testing.assert_close(out.vs, torch.tensor([[4.5], [7.0], [7.0]]))  # 1 + 0.5 (3 + 0.5 * 8)
    torch.testing.assert_close(out.pg_advantage, out.vs - v[:-1])
    without_mask = vtrace(log_rho, r, d, v[:-1], v[1:], valid)
    assert without_mask.vs[0].item() == pytest.approx(1.0 + 0.5 * 0.7)


def test_targets_are_detached_and_shape_errors_name_the_argument(make_rollout):
    rollout = make_rollout(0, length=5, rows=4)
    v, log_rho = rollout.v.clone().requires_grad_(), log_rhos(rollout).requires_grad_()
    out = vtrace(log_rho, rollout.r_t, rollout.discount_t, v[:-1], v[1:], rollout.valid_t)
    assert not out.vs.requires_grad
    assert not out.pg_advantage.requires_grad
    with pytest.raises(ValueError, match=r"vtrace: keep_t has shape \(4,\), expected \[T, B\] = \(5, 4\) as log_rho_t"):
        run(rollout, log_rho, keep_t=rollout.valid_t[0])
