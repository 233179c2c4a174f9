from __future__ import annotations

import pytest
import torch
from torch import nn

from starling import tree
from starling.config.parts import CoreConfig
from starling.errors import UserError
from starling.nets.cores import GRU, LSTM, build_core

T, B, F, H = 9, 4, 3, 5
KINDS = ("lstm", "gru")


class WithoutStep(nn.Module):
    def __init__(self, inputs, size):
        super().__init__()
        self.size = size
        self.inputs = inputs


def slow_unroll(core, x, first, state):
    """torch's own cells step by step, with the state zeroed before every t where first[t] is set."""
    module, cell_type = (core.lstm, nn.LSTMCell) if isinstance(core, LSTM) else (core.gru, nn.GRUCell)
    cell = cell_type(F, H)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in module.state_dict().items()})
    outputs = []
    for x_t, first_t in zip(x, first, strict=True):
        state = {name: torch.where(first_t[:, None], 0.0, value) for name, value in state.items()}
        if isinstance(core, LSTM):
            h, c = cell(x_t, (state["h"], state["c"]))
            state = {"h": h, "c": c}
        else:
            state = {"h": cell(x_t, state["h"])}
        outputs.append(state["h"])
    return torch.stack(outputs), state


def make(kind, seed=0):
    torch.manual_seed(seed)
    core = build_core(F, CoreConfig(kind=kind, size=H))
    state = tree.map(torch.randn_like, core.initial_state(B))
    return core, torch.randn(T, B, F), state


def resets(pattern):
    if pattern == "random":
        return torch.rand(T, B, generator=torch.Generator().manual_seed(3)) < 0.3
    first = torch.zeros(T, B, dtype=torch.bool)
    first[{"none": [], "start": [0], "last": [T - 1], "all": list(range(T))}[pattern]] = True
    return first


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("pattern", ["none", "start", "last", "all", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_unroll_equals_steps_with_states_zeroed_at_resets(kind, pattern, grad):
    core, x, state = make(kind)
    first = resets(pattern)
    with torch.set_grad_enabled(grad):
        y, last = core(x, first, state)
        slow_y, slow_last = slow_unroll(core, x, first, state)
    torch.testing.assert_close(y, slow_y, rtol=0, atol=1e-6)
    tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-6), last, slow_last)


@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_equals_unroll(kind):
    core, x, state = make(kind)
    first = resets("random")
    y, last = core(x, first, state)
    for t in range(T):
        y_t, state = core.step(x[t], first[t], state)
        torch.testing.assert_close(y_t, y[t], rtol=0, atol=1e-6)
    tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-6), state, last)


@pytest.mark.parametrize("cut", [1, 4, T - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_two_halves_joined_by_the_state_equal_one_unroll(kind, cut):
    core, x, state = make(kind)
    first = resets("random")
    whole, last = core(x, first, state)
    left, middle = core(x[:cut], first[:cut], state)
    right, last_of_halves = core(x[cut:], first[cut:], middle)
    torch.testing.assert_close(torch.cat((left, right)), whole, rtol=0, atol=1e-6)
    tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-6), last_of_halves, last)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_crosses_a_reset(kind):
    core, x, state = make(kind)
    x.requires_grad_()
    first = torch.zeros(T, B, dtype=torch.bool)
    first[5, 1] = True
    y, _ = core(x, first, state)
    y[7].sum().backward()
    reached = x.grad.abs().sum(-1) > 0  # [T, B]
    assert reached[:8, [0, 2, 3]].all()
    assert not reached[:5, 1].any()
    assert reached[5:8, 1].all()
    assert not reached[8:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_reset_also_clears_a_non_finite_state(kind):
    core, x, state = make(kind)
    broken = tree.map(lambda s: torch.full_like(s, float("nan")), state)
    first = resets("start")
    assert core(x, first, broken)[0].isfinite().all()
    assert core.step(x[0], first[0], broken)[0].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_cores_make_one_call_per_span_without_resets(kind, monkeypatch):
    core, x, state = make(kind)
    lengths = []
    run = core._run
    monkeypatch.setattr(core, "_run", lambda part, s: lengths.append(len(part)) or run(part, s))
    core(x, resets("start"), state)
    first = resets("none")
    first[[3, 8], [0, 2]] = True
    core(x, first, state)
    assert lengths == [T, 3, 5, 1]


def test_core_none_returns_the_features_unchanged():
    core = build_core(F, CoreConfig())
    x = torch.randn(T, B, F)
    assert core.size == F
    assert core.initial_state(B) is None
    assert core(x, resets("random"), None) == (x, None)
    assert core.step(x[0], resets("random")[0], None)[0].shape == (B, F)


def test_states_are_batch_first():
    assert tree.map(lambda s: tuple(s.shape), LSTM(F, H).initial_state(B)) == {"h": (B, H), "c": (B, H)}
    assert tree.map(lambda s: s.tolist(), GRU(F, 1).initial_state(2)) == {"h": [[0.0], [0.0]]}


def test_invalid_cores_raise_clear_errors():
    with pytest.raises(UserError, match=r"unknown core 'lsmt'; did you mean 'lstm'"):
        build_core(F, CoreConfig(kind="lsmt"))
    with pytest.raises(UserError, match=r"lacks initial_state, step"):
        build_core(F, CoreConfig(kind=f"{__name__}:WithoutStep"))
