"""Distributions compared with torch.distributions; sampling checked by statistics with a fixed seed."""

import numpy as np
import pytest
import torch
import torch.distributions as td
from scipy import stats

from starling.ops.distributions import Categorical, Gaussian, MultiCategorical, TanhGaussian

ALMOST_ONE = float(np.nextafter(np.float32(1), np.float32(0)))


def normal(seed, *shape, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).to(dtype)


def uniform(seed, *shape, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).random(shape)).to(dtype)


def gaussians(kind=Gaussian, seed=0):
    return kind(normal(seed, 4, 3), 0.5 * normal(seed + 1, 4, 3)), kind(normal(seed + 2, 4, 3), normal(seed + 3, 3))


# --- Categorical


def test_categorical_matches_torch():
    p, q = Categorical(3 * normal(0, 5, 4, 6)), Categorical(normal(1, 5, 4, 6))
    reference = td.Categorical(logits=p.logits, validate_args=False)
    action = torch.from_numpy(np.random.default_rng(2).integers(6, size=(5, 4)))
    torch.testing.assert_close(p.log_prob(action), reference.log_prob(action))
    torch.testing.assert_close(p.entropy(), reference.entropy())
    torch.testing.assert_close(p.kl(q), td.kl_divergence(reference, td.Categorical(logits=q.logits)))
    assert p.mode().equal(p.logits.argmax(-1))
    assert p.kl(Categorical(p.logits + 5.0)).abs().max() < 1e-12


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_categorical_samples_pass_a_chi_square_test(scale):
    logits = scale * normal(3, 5, dtype=torch.float32)
    n = 40_000
    sample = Categorical(logits.expand(n, 5)).sample(uniform(4, n, 1))
    expected = logits.double().softmax(-1).numpy() * n
    observed = np.bincount(sample.numpy(), minlength=5)
    enough = expected > 5
    assert observed[~enough].sum() < 25
    assert (
        stats.chisquare(observed[enough], expected[enough] * observed[enough].sum() / expected[enough].sum()).pvalue
        > 1e-3
    )


def test_categorical_samples_by_inverting_the_cdf():
    p = Categorical(torch.tensor([0.2, 0.5, 0.3]).log().expand(6, 3))
    noise = torch.tensor([[0.0], [0.19], [0.21], [0.69], [0.71], [1.0]])
    assert p.sample(noise).tolist() == [0, 0, 1, 1, 2, 2]
    assert Categorical(torch.zeros(2)).sample(torch.tensor([0.5])).item() == 1  # intervals are half-open, [from, to)


@pytest.mark.parametrize("actions", [1, 2, 3, 7, 18, 1000, 4097])
@pytest.mark.parametrize("noise", [0.0, 1e-45, 1e-7, 0.5, ALMOST_ONE, 1.0])
def test_categorical_samples_stay_in_range(actions, noise):
    logits = normal(actions, 200, actions, dtype=torch.float32) * 3
    sample = Categorical(logits).sample(torch.full((200, 1), noise))
    assert sample.min() >= 0
    assert sample.max() < actions


@pytest.mark.parametrize("noise", [0.0, 0.3, ALMOST_ONE, 1.0])
def test_forbidden_action_is_never_sampled(noise):
    """Actions of probability 0 before, between, and after the others, with sums that round below and above 1."""
    logits = normal(0, 500, 9, dtype=torch.float32)
    logits[:, [0, 1, 4, 7, 8]] = -torch.inf
    p = Categorical(logits)
    sample = p.sample(torch.full((500, 1), noise))
    assert set(sample.tolist()) <= {2, 3, 5, 6}
    assert p.log_prob(sample).isfinite().all()


def test_entropy_kl_and_gradients_are_finite_with_forbidden_actions():
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    p = Categorical(logits)
    open_p = Categorical(torch.tensor([[0.0, 1.0]]))
    torch.testing.assert_close(p.entropy(), open_p.entropy())
    (a, b), (c, d) = open_p.logits[0].softmax(-1), torch.tensor([1.0, 0.0, 0.0]).softmax(-1)[:2]
    kl = p.kl(Categorical(torch.tensor([[1.0, 0.0, 0.0]])))
    assert kl.item() == pytest.approx((a * (a / c).log() + b * (b / d).log()).item())
    assert Categorical(torch.zeros(1, 3)).kl(p).item() > 1e30
    (p.entropy() + p.kl(Categorical(torch.zeros(1, 3)))).sum().backward()
    assert logits.grad.isfinite().all()


def test_categorical_sample_is_int64_without_gradient():
    p = Categorical(torch.zeros(8, 4, requires_grad=True))
    sample = p.sample(uniform(0, 8, 1))
    assert sample.dtype == torch.int64
    assert sample.shape == (8,)
    assert p.noise_size == 1


# --- MultiCategorical


def test_multi_categorical_is_a_product_of_categoricals():
    p = MultiCategorical((normal(0, 5, 3), normal(1, 5, 2), normal(2, 5, 4)))
    q = MultiCategorical((normal(3, 5, 3), normal(4, 5, 2), normal(5, 5, 4)))
    noise = uniform(6, 5, 3)
    action = p.sample(noise)
    assert p.noise_size == 3
    assert action.shape == (5, 3)
    parts = [td.Categorical(logits=logits) for logits in p.logits]
    others = [td.Categorical(logits=logits) for logits in q.logits]
    for k, logits in enumerate(p.logits):
        assert action[:, k].equal(Categorical(logits).sample(noise[:, k : k + 1]))
        assert p.mode()[:, k].equal(logits.argmax(-1))
    torch.testing.assert_close(p.log_prob(action), sum(part.log_prob(action[:, k]) for k, part in enumerate(parts)))
    torch.testing.assert_close(p.entropy(), sum(part.entropy() for part in parts))
    torch.testing.assert_close(p.kl(q), sum(td.kl_divergence(a, b) for a, b in zip(parts, others, strict=True)))


# --- Gaussian


def test_gaussian_matches_torch():
    p, q = gaussians()
    reference = td.Independent(td.Normal(p.mean, p.log_std.exp()), 1)
    other = td.Independent(td.Normal(q.mean, q.log_std.exp().expand_as(q.mean)), 1)
    action = normal(9, 4, 3)
    torch.testing.assert_close(p.log_prob(action), reference.log_prob(action))
    torch.testing.assert_close(q.log_prob(action), other.log_prob(action))
    torch.testing.assert_close(p.entropy(), reference.entropy())
    torch.testing.assert_close(q.entropy(), other.entropy())
    torch.testing.assert_close(p.kl(q), td.kl_divergence(reference, other))
    torch.testing.assert_close(q.kl(p), td.kl_divergence(other, reference))
    assert p.mode() is p.mean


def test_gaussian_samples_follow_the_normal_distribution():
    n = 20_000
    p = Gaussian(torch.tensor([1.0, -2.0]).expand(n, 2), torch.tensor([0.0, -1.0]))
    sample = p.sample(uniform(5, n, 2)).numpy()
    assert p.noise_size == 2
    for dimension, (mean, log_std) in enumerate(((1.0, 0.0), (-2.0, -1.0))):
        assert stats.kstest(sample[:, dimension], "norm", args=(mean, np.exp(log_std))).pvalue > 1e-3
    assert abs(np.corrcoef(sample.T)[0, 1]) < 0.03


@pytest.mark.parametrize("kind", [Gaussian, TanhGaussian])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_of_0_or_1_gives_a_finite_sample(kind, dtype):
    p = kind(torch.zeros(1, 3, dtype=dtype), torch.zeros(3, dtype=dtype))
    sample = p.sample(torch.tensor([[0.0, 0.5, 1.0]], dtype=dtype))
    assert sample.isfinite().all()
    torch.testing.assert_close(sample, -sample.flip(-1), atol=1e-5, rtol=0)


def test_gradient_flows_through_a_gaussian_sample():
    mean, log_std = torch.zeros(2, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    noise = uniform(1, 2, 3)
    Gaussian(mean, log_std).sample(noise).sum().backward()
    assert mean.grad.equal(torch.ones(2, 3))
    torch.testing.assert_close(log_std.grad, torch.special.ndtri(noise).sum(0))


# --- TanhGaussian


def tanh_reference(p):
    base = td.Normal(p.mean, p.log_std.exp().expand_as(p.mean))
    return td.Independent(td.TransformedDistribution(base, td.TanhTransform()), 1)


def test_tanh_gaussian_matches_torch():
    for p in gaussians(TanhGaussian):
        action, log_prob = p.sample_with_log_prob(uniform(3, 4, 3, dtype=torch.float64))
        assert action.abs().max() < 1
        torch.testing.assert_close(log_prob, tanh_reference(p).log_prob(action))
        torch.testing.assert_close(p.log_prob(action), log_prob)
        assert p.sample(uniform(3, 4, 3, dtype=torch.float64)).equal(action)
        torch.testing.assert_close(p.mode(), p.mean.tanh())


def test_tanh_gaussian_density_integrates_to_1():
    actions = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1, None]
    p = TanhGaussian(torch.tensor([[0.4]]).double(), torch.tensor([-0.3]).double())
    density = TanhGaussian(p.mean.expand_as(actions), p.log_std).log_prob(actions).exp()
    assert torch.trapezoid(density, dx=1e-5).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("mean", [-40.0, -12.0, 12.0, 40.0])
def test_saturated_actions_have_exact_log_prob_and_gradient(mean):
    """In float32 tanh(12) is 1 and log(1 - tanh^2) would be -inf; in float64 it is still exact at 12."""
    log_prob = {}
    for dtype in (torch.float32, torch.float64):
        location = torch.tensor([[mean]], dtype=dtype, requires_grad=True)
        noise = torch.tensor([[0.7]], dtype=dtype)
        _, value = TanhGaussian(location, torch.zeros(1, dtype=dtype)).sample_with_log_prob(noise)
        value.sum().backward()
        assert location.grad.item() == pytest.approx(2.0 * np.sign(mean), rel=1e-4)  # d/dx of -log(1 - tanh^2 x)
        log_prob[dtype] = value.item()
    assert log_prob[torch.float32] == pytest.approx(log_prob[torch.float64], rel=1e-5)
    assert TanhGaussian(torch.tensor([[mean]]), torch.zeros(1)).log_prob(torch.tensor([[1.0]])).isfinite().all()


def test_tanh_gaussian_kl_equals_the_gaussian_kl():
    (p, q), (base_p, base_q) = gaussians(TanhGaussian), gaussians(Gaussian)
    torch.testing.assert_close(p.kl(q), base_p.kl(base_q))
    assert p.noise_size == 3


# --- All kinds


@pytest.mark.parametrize(
    "p",
    [
        Categorical(normal(0, 4, 5)),
        MultiCategorical(tuple(normal(k, 4, 2 + k) for k in range(11))),
        Gaussian(normal(0, 4, 3), normal(1, 3)),
        TanhGaussian(normal(0, 4, 3), normal(1, 3)),
    ],
    ids=lambda p: type(p).__name__,
)
def test_params_round_trip(p):
    params = p.params()
    assert all(tensor.shape[0] == 4 for tensor in params.values())
    back = type(p).from_params(dict(sorted(params.items())))  # logits_10 sorts before logits_2
    noise = uniform(2, 4, p.noise_size, dtype=torch.float64)
    action = p.sample(noise)
    assert back.sample(noise).equal(action)
    assert back.log_prob(action).equal(p.log_prob(action))
    assert p.kl(back).abs().max() < 1e-12


def test_shape_errors_name_the_argument():
    with pytest.raises(
        ValueError, match=r"Categorical.sample: noise has shape \(4,\), expected \[\.\.\., 1\] = \(4, 1\)"
    ):
        Categorical(torch.zeros(4, 2)).sample(torch.zeros(4))
    with pytest.raises(
        ValueError, match=r"Gaussian.log_prob: action has shape \(4,\), expected \[\.\.\., D\] = \(4, 2\)"
    ):
        Gaussian(torch.zeros(4, 2), torch.zeros(2)).log_prob(torch.zeros(4))
