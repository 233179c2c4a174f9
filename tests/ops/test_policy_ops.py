import math

import numpy as np
import pytest
import torch

from starling.ops.policy import (
    clipped_value_loss,
    is_clipped,
    kl_estimate,
    log_ratio,
    masked_mean,
    masked_means,
    masked_sum,
    normalize,
    policy_gradient_loss,
    ppo_surrogate,
    total_variation,
    value_loss,
)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    names = ("log_prob", "old", "advantage", "v", "v_old", "target")
    tensors = {name: torch.from_numpy(rng.normal(size=(7, 5)) * 0.4) for name in names}
    return tensors | {"valid": torch.from_numpy(rng.random((7, 5)) < 0.7)}


CLIP = torch.tensor(0.2)
STEPS = [(t, b) for t in range(7) for b in range(5)]


def test_ppo_surrogate_matches_the_paper(data):
    loss = ppo_surrogate(log_ratio(data["log_prob"], data["old"]), data["advantage"], CLIP)
    clipped = 0
    for i in STEPS:
        ratio, a = math.exp(data["log_prob"][i] - data["old"][i]), data["advantage"][i].item()
        surrogate = min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
        clipped += surrogate != ratio * a
        assert loss[i].item() == pytest.approx(-surrogate)
    assert 0 < clipped < 35


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"), [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False)]
)
def test_ppo_clip_stops_only_gradients_that_move_the_ratio_further_out(ratio, advantage, moves):
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    ppo_surrogate(log_prob, torch.tensor([advantage]), CLIP).sum().backward()
    assert log_prob.grad.item() == pytest.approx(-ratio * advantage if moves else 0.0)


def test_value_losses_match_their_definitions(data):
    plain = value_loss(data["v"], data["target"])
    clipped = clipped_value_loss(data["v"], data["v_old"], data["target"], 0.1)
    for i in STEPS:
        v, old, g = (data[name][i].item() for name in ("v", "v_old", "target"))
        held = old + min(max(v - old, -0.1), 0.1)
        assert plain[i].item() == pytest.approx(0.5 * (v - g) ** 2)
        assert clipped[i].item() == pytest.approx(0.5 * max((v - g) ** 2, (held - g) ** 2))
    assert (clipped > plain).any()


def test_gradients_flow_only_into_the_current_network(data):
    leaf = {name: tensor.clone().requires_grad_() for name, tensor in data.items() if name != "valid"}
    losses = [
        ppo_surrogate(log_ratio(leaf["log_prob"], leaf["old"]), leaf["advantage"], CLIP),
        policy_gradient_loss(leaf["log_prob"], leaf["advantage"]),
        value_loss(leaf["v"], leaf["target"]),
        clipped_value_loss(leaf["v"], leaf["v_old"], leaf["target"], 0.1),
    ]
    sum(loss.sum() for loss in losses).backward()
    assert {name for name, tensor in leaf.items() if tensor.grad is not None} == {"log_prob", "v"}


def test_policy_gradient_loss_has_the_reinforce_gradient(data):
    log_prob = data["log_prob"].clone().requires_grad_()
    policy_gradient_loss(log_prob, data["advantage"]).sum().backward()
    assert log_prob.grad.equal(-data["advantage"])


def test_masked_reductions_use_only_valid_steps(data):
    x, valid = data["advantage"] * 3 + 5, data["valid"]
    spoiled = torch.where(valid, x, 1e30)
    inside = x.numpy()[valid.numpy()]
    assert masked_sum(spoiled, valid).item() == pytest.approx(inside.sum())
    assert masked_mean(spoiled, valid).item() == pytest.approx(inside.mean())
    normal = normalize(spoiled, valid)
    expected = (inside - inside.mean()) / inside.std()
    np.testing.assert_allclose(normal.numpy()[valid.numpy()], expected, rtol=1e-6)
    assert (normal[~valid] == 0).all()


def test_masked_reductions_of_zero_or_one_step_are_finite():
    none, one = torch.zeros(3, dtype=torch.bool), torch.tensor([False, True, False])
    x = torch.tensor([1.0, 2.0, 3.0])
    assert masked_mean(x, none).item() == 0
    assert normalize(x, none).tolist() == [0, 0, 0]
    assert normalize(x, one).tolist() == [0, 0, 0]


def test_masked_step_does_not_affect_gradients():
    """The ratio at a reset may overflow; 0 x inf in its backward pass would be NaN."""
    log_prob = torch.tensor([0.1, 500.0], requires_grad=True)
    valid = torch.tensor([True, False])
    loss = ppo_surrogate(log_ratio(log_prob, torch.zeros(2)), torch.tensor([1.0, -1e9]), CLIP)
    masked_mean(loss, valid).backward()
    assert log_prob.grad.tolist() == [pytest.approx(-math.exp(0.1)), 0.0]


def test_kl_and_clip_fraction_metrics(data):
    log_prob, old, valid = data["log_prob"], data["old"], data["valid"]
    ratio = np.exp((log_prob - old).numpy()[valid.numpy()])
    log_rho = torch.where(valid, log_ratio(log_prob, old), 70.0).requires_grad_()
    means = masked_means({"kl": kl_estimate(log_rho), "clipped": is_clipped(log_rho, torch.tensor(0.3))}, valid)
    assert means["kl"].item() == pytest.approx((ratio - 1 - np.log(ratio)).mean())
    assert means["clipped"].item() == pytest.approx((np.abs(ratio - 1) > 0.3).mean())
    assert not any(mean.requires_grad for mean in means.values())
    same = log_ratio(old, old)
    assert (kl_estimate(same) == 0).all()
    assert (is_clipped(same, CLIP) == 0).all()


def test_kl_estimate_has_the_kl_divergence_as_expectation():
    """Exact expectation over all actions of a behavior policy p: sum_a p(a) (ratio - 1 - log ratio) = KL(p || q)."""
    p, q = torch.tensor([0.2, 0.5, 0.3]).double(), torch.tensor([0.4, 0.4, 0.2]).double()
    assert sum(p * kl_estimate(log_ratio(q.log(), p.log()))).item() == pytest.approx(sum(p * (p / q).log()).item())


def test_total_variation_estimate_has_the_exact_expectation():
    """Exact expectation over actions of a behavior policy p: sum_a p(a) (1 - min(1, q/p)) = sum_a |p - q| / 2."""
    p, q = torch.tensor([0.2, 0.5, 0.3]).double(), torch.tensor([0.4, 0.4, 0.2]).double()
    expected = (p - q).abs().sum().item() / 2
    assert sum(p * total_variation(log_ratio(q.log(), p.log()))).item() == pytest.approx(expected)


def test_shape_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"ppo_surrogate: advantage has shape \(3, 1\), expected \[\.\.\.\] = \(3,\)"):
        ppo_surrogate(torch.zeros(3), torch.zeros(3, 1), CLIP)
    with pytest.raises(ValueError, match="log_ratio: behavior_log_prob has shape"):
        log_ratio(torch.zeros(3), torch.zeros(1))
    with pytest.raises(ValueError, match="masked_mean: valid has shape"):
        masked_mean(torch.zeros(3, 2), torch.ones(3, dtype=torch.bool))
