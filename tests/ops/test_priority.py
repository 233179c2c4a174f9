import numpy as np
import pytest
import torch

from starling.ops.priority import importance_weights, sequence_priority


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_match_the_paper(beta):
    probability, size = [0.1, 0.001, 0.03, 0.5], [10, 2000, 10, 10]
    raw = [(n * p) ** -beta for n, p in zip(size, probability, strict=True)]
    weights = importance_weights(torch.tensor(probability).double(), torch.tensor(size), beta)
    assert weights.tolist() == pytest.approx([w / max(raw) for w in raw])
    assert weights.max() == 1


def test_uniform_probabilities_give_weight_1_and_tiny_ones_stay_finite():
    assert importance_weights(torch.full((4,), 1e-6), 1_000_000, 0.7).tolist() == [1.0] * 4
    assert importance_weights(torch.tensor([1e-38, 0.5]), 10**6, 1.0).isfinite().all()


@pytest.mark.parametrize("eta", [0.0, 0.9, 1.0])
def test_sequence_priority_matches_the_paper(eta):
    rng = np.random.default_rng(0)
    td, valid = np.abs(rng.normal(size=(8, 5))), rng.random((8, 5)) < 0.6
    valid[:, 4] = False
    spoiled = torch.from_numpy(np.where(valid, td, 1e9)).requires_grad_()
    priority = sequence_priority(spoiled, torch.from_numpy(valid), eta)
    assert not priority.requires_grad
    for b in range(4):
        inside = td[valid[:, b], b]
        assert priority[b].item() == pytest.approx(eta * inside.max() + (1 - eta) * inside.mean())
    assert priority[4] == 0


def test_shape_errors_name_the_argument():
    with pytest.raises(
        ValueError, match=r"sequence_priority: valid_t has shape \(2, 4\), expected \[T, B\] = \(2, 3\)"
    ):
        sequence_priority(torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"importance_weights: table_size has shape \(3,\)"):
        importance_weights(torch.ones(2), torch.ones(3), 0.5)
