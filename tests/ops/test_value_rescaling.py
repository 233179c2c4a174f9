import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.ops.value import IDENTITY, RESCALED, h, h_inverse

MAGNITUDES = np.geomspace(1e-6, 1e6, 241)
BOTH_SIGNS = np.concatenate([-MAGNITUDES[::-1], [0.0], MAGNITUDES])


def exact_h(x, eps=1e-3):
    """sign(x) (sqrt(|x| + 1) - 1) + eps x, with more digits than float64 has."""
    x = np.asarray(x, np.longdouble)
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + eps * x


def test_h_matches_the_formula_in_float32():
    x = torch.from_numpy(BOTH_SIGNS).float()
    np.testing.assert_allclose(h(x).numpy(), exact_h(x.numpy()).astype(np.float64), rtol=4e-7)


def test_inverse_matches_the_formula():
    """((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / 2 eps)^2 - 1 (1805.11593, proposition A.2)."""
    x = np.asarray([-300.0, -2.0, 0.5, 40.0, 1000.0], np.longdouble)
    root = np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3))
    exact = np.sign(x) * (((root - 1) / 2e-3) ** 2 - 1)
    np.testing.assert_allclose(
        h_inverse(torch.from_numpy(x.astype(np.float64))).numpy(), exact.astype(float), rtol=1e-12
    )


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 2e-15)])
@pytest.mark.parametrize("eps", [1e-3, 1e-2, 0.0])
def test_round_trips_from_1e_minus_6_to_1e6(dtype, rtol, eps):
    x = torch.from_numpy(BOTH_SIGNS).to(dtype)
    torch.testing.assert_close(h_inverse(h(x, eps), eps), x, rtol=rtol, atol=0)
    torch.testing.assert_close(h(h_inverse(x, eps), eps), x, rtol=rtol, atol=0)


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32))
def test_h_is_odd_and_monotonic(a, b):
    low, high = (torch.tensor(x) for x in sorted((a, b)))
    assert h(low) <= h(high)
    assert h(-high) == -h(high)
    assert h_inverse(-low) == -h_inverse(low)


def test_gradients_are_finite_at_0():
    for function, slope in ((h, 0.501), (h_inverse, 1 / 0.501)):
        x = torch.zeros(1, requires_grad=True)
        function(x).sum().backward()
        assert x.grad.item() == pytest.approx(slope, rel=1e-4)


def test_transform_pairs_invert_each_other():
    x = torch.tensor([-3.0, 0.0, 8.0])
    assert IDENTITY.apply(x) is x
    assert IDENTITY.inverse(x) is x
    assert RESCALED.apply(x)[2].item() == pytest.approx(2.008)
    torch.testing.assert_close(RESCALED.inverse(RESCALED.apply(x)), x)
