"""Recurrent cores: [T, B, F] to [T, B, size].

A core has `size`, `initial_state(batch_size)` (a tree of [B, ...]), `forward` for a sequence, and `step` for one step.
The state is zeroed before every t with `first[t]`, so a sequence may contain several episodes. If the core has
`takes_resets`, `forward` also gets the times at which this happens, where the host knows them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from starling.config.parts import CoreConfig
from starling.errors import UserError
from starling.registry import Entry, Registry, check_kind
from starling.types import Resets, Tensor

State = dict[str, Tensor]
Run = Callable[[Tensor, State], tuple[Tensor, State]]


def _reset(state: State, first: Tensor) -> State:
    """Zero the state [B, H] of rows that begin an episode, even if it is not finite."""
    mask = first.unsqueeze(-1)
    return {name: value.masked_fill(mask, 0.0) for name, value in state.items()}


def _segments(run: Run, x: Tensor, first: Tensor, state: State, resets: Resets | None) -> tuple[Tensor, State]:
    """Call `run` on each segment between resets: a single call if no episode begins after t = 0."""
    known = (
        (first[1:].any(dim=1).nonzero().flatten() + 1).tolist() if resets is None else resets.between(0, len(x)).times
    )
    parts = []
    for start, end in pairwise([0, *known, len(x)]):
        y, state = run(x[start:end], _reset(state, first[start]))
        parts.append(y)
    return (parts[0] if len(parts) == 1 else torch.cat(parts)), state


class NoCore(nn.Module):
    """No recurrence: features pass through, and there is no state."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.size = inputs

    def initial_state(self, _batch_size: int) -> None:
        return None

    def step(self, x: Tensor, _first: Tensor, _state: None) -> tuple[Tensor, None]:
        return x, None

    def forward(self, x: Tensor, _first: Tensor, _state: None) -> tuple[Tensor, None]:
        return x, None


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter 1997); its state is {"h": [B, size], "c": [B, size]}."""

    takes_resets = True

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.lstm = nn.LSTM(inputs, size)

    def initial_state(self, batch_size: int) -> State:
        weight = next(self.lstm.parameters())
        return {"h": weight.new_zeros(batch_size, self.size), "c": weight.new_zeros(batch_size, self.size)}

    def step(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step: x [B, F], first [B] to y [B, size]; the cell takes half the time of a sequence of length 1."""
        return self._cell(x, _reset(state, first))

    def forward(self, x: Tensor, first: Tensor, state: State, resets: Resets | None = None) -> tuple[Tensor, State]:
        return _segments(self._run, x, first, state, resets)

    def _cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        h, c = torch.lstm_cell(x, (state["h"], state["c"]), *self.lstm.all_weights[0])
        return h, {"h": h, "c": c}

    def _run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        if len(x) == 1:
            h, state = self._cell(x[0], state)
            return h.unsqueeze(0), state
        y, (h, c) = self.lstm(x, (state["h"].unsqueeze(0), state["c"].unsqueeze(0)))
        return y, {"h": h[0], "c": c[0]}


class GRU(nn.Module):
    """Gated recurrent unit (1406.1078); its state is {"h": [B, size]}."""

    takes_resets = True

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.gru = nn.GRU(inputs, size)

    def initial_state(self, batch_size: int) -> State:
        return {"h": next(self.gru.parameters()).new_zeros(batch_size, self.size)}

    def step(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step: x [B, F], first [B] to y [B, size]."""
        return self._cell(x, _reset(state, first))

    def forward(self, x: Tensor, first: Tensor, state: State, resets: Resets | None = None) -> tuple[Tensor, State]:
        return _segments(self._run, x, first, state, resets)

    def _cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        h = torch.gru_cell(x, state["h"], *self.gru.all_weights[0])
        return h, {"h": h}

    def _run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        if len(x) == 1:
            h, state = self._cell(x[0], state)
            return h.unsqueeze(0), state
        y, h = self.gru(x, state["h"].unsqueeze(0))
        return y, {"h": h[0]}


CORES = Registry(
    "core",
    {
        "none": Entry(NoCore, "no memory"),
        "lstm": Entry(LSTM, "long short-term memory"),
        "gru": Entry(GRU, "gated recurrent unit"),
    },
)


def build_core(inputs: int, config: CoreConfig) -> Any:
    """Build the core that `config` names; a user's own class is constructed with (inputs, size)."""
    if config.kind == "none":
        return NoCore(inputs)
    factory = CORES.load(config.kind)
    check_kind(factory, config.kind, "core", (nn.Module,))
    core = factory(inputs, config.size)
    missing = [name for name in ("size", "initial_state", "step", "forward") if not hasattr(core, name)]
    if missing:
        raise UserError(f"core {config.kind} lacks {', '.join(missing)}; see starling.nets.cores")
    return core
