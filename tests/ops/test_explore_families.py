"""Families of policies, compared with values computed by hand from the papers' formulas."""

import math

import pytest
import torch

from starling.ops.explore import discounts, long_discounts, novelty_weights


def test_novelty_weight_rises_from_0_over_the_policies():
    beta = novelty_weights(32, 0.3)
    assert len(beta) == 32
    assert beta[0] == 0
    assert beta[31] == pytest.approx(0.3)
    assert beta[15] == pytest.approx(0.3 / (1 + math.exp(0)))  # (2 * 15 - 30) / 30 = 0
    assert beta[1] == pytest.approx(0.3 / (1 + math.exp(10 * 28 / 30)))
    assert (beta.diff() > 0).all()


def test_families_of_one_and_two_policies():
    assert novelty_weights(1, 0.3).tolist() == [0]
    assert novelty_weights(2, 0.3).tolist() == pytest.approx([0, 0.3])
    assert discounts(1, 0.997, 0.99).tolist() == pytest.approx([0.997])
    assert discounts(2, 0.997, 0.99).tolist() == pytest.approx([0.997, 0.99])


def test_one_minus_discount_grows_geometrically():
    gamma = discounts(5, 0.99, 0.9)
    ratios = (1 - gamma[1:].double()) / (1 - gamma[:-1].double())
    torch.testing.assert_close(ratios, torch.full_like(ratios, 10 ** (1 / 4)), rtol=1e-4, atol=0)


def test_discounts_of_agent57():
    gamma = long_discounts(32)
    assert len(gamma) == 32
    assert gamma[0] == pytest.approx(0.9999)
    assert gamma[7] == pytest.approx(0.997)
    assert gamma[8] == pytest.approx(0.997)
    assert gamma[31] == pytest.approx(0.99)
    assert gamma[1] == pytest.approx(0.997 + 0.0029 / (1 + math.exp(-10)))  # i = 6 in the paper's formula
    assert gamma[4] == pytest.approx(0.997 + 0.0029 / 2)  # i = 3
    assert (gamma.diff() <= 0).all()
    with pytest.raises(ValueError, match="at least 10"):
        long_discounts(9)
