"""A device `mock:0` that behaves like a GPU where that can be seen from Python, on a machine without one.

A tensor on it wraps a CPU tensor and computes with it. As on a GPU, tensors of different devices do not mix (but for
CPU scalars), a generator belongs to its device, LSTM and GRU use fused cells, and pinned memory differs from pageable.
Copies between host and device, and operations for which the host waits, are counted by the line of Starling that caused
them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.optim.optimizer import _foreach_supported_types
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
from torch.utils.flop_counter import flop_registry

import starling

aten = torch.ops.aten
NAME = "mock"
SOURCE = Path(starling.__file__).parent
_CPU_GENERATOR = torch.Generator
STATE_BYTES = 16  # of a generator on the device: a seed and a counter, as on a GPU

WAITING = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
}
"""Operations whose result, or the size of it, the host reads."""
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
WITHOUT_KERNEL = {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default}
JOINING = {aten.cat.default, aten.stack.default}
"""Operations that do not accept even a scalar of another device."""
UNCLEAR = "elsewhere"
Pinned = dict[int, torch.Tensor]
"""Pinned memory by its address; it is kept, so that no pageable memory gets the same one."""


@dataclass
class Counts:
    """Synchronizations and copies, each by the source line (`actor/core.py:143`) that caused them; and work done.

    Every operation that computes counts as one kernel, which reads its arguments and writes its results.
    """

    waits: Counter[str] = field(default_factory=Counter)
    to_device: Counter[str] = field(default_factory=Counter)
    to_host: Counter[str] = field(default_factory=Counter)
    kernels: int = 0
    flops: int = 0  # of matrix products and convolutions
    kernel_bytes: int = 0
    copied_bytes: int = 0

    @property
    def totals(self) -> tuple[int, int, int]:
        """Synchronizations, copies to the device, copies to the host."""
        return self.waits.total(), self.to_device.total(), self.to_host.total()

    def __str__(self) -> str:
        kinds = {"waits": self.waits, "to device": self.to_device, "to host": self.to_host}
        return "; ".join(f"{kind}: {dict(lines)}" for kind, lines in kinds.items() if lines) or "nothing"


class MockTensor(torch.Tensor):
    """A tensor on the mock device; `raw` is the CPU tensor that holds its values."""

    raw: torch.Tensor
    used_by: list[Stream]
    """Streams, other than the one that it was made in, whose kernels read it."""

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> MockTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=torch.device(NAME, 0),
        )
        made.raw, made.used_by = raw, []
        return made

    def record_stream(self, stream: Stream) -> None:  # type: ignore[override]
        self.used_by.append(stream)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"MockTensor({self.raw})"

    def __deepcopy__(self, memo: dict[int, Any]) -> MockTensor:
        if id(self) not in memo:
            with torch.no_grad():
                made = self.detach().clone()
            if getattr(self, "_is_param", False):
                made._is_param = True
            memo[id(self)] = made.requires_grad_(self.requires_grad)
        return memo[id(self)]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.data.__set__:  # copies sizes and strides; the values are ours to replace
            target, value = args
            target.raw = value.raw
        if func is torch.Tensor.numpy:
            raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu()")
        if func is torch.Tensor.tolist:  # refused for subclasses
            return args[0].cpu().tolist()
        with torch._C.DisableTorchFunctionSubclass():  # else a copy on the host would become a `MockTensor`
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, Counts(), {})


_generators: WeakValueDictionary[int, MockGenerator] = WeakValueDictionary()


class MockGenerator(_CPU_GENERATOR):
    """Random numbers on the device, a function of a seed and a counter; its state means nothing to another device."""

    def __new__(cls, device: Any = NAME) -> MockGenerator:
        made = super().__new__(cls)
        made._seed, made._drawn = 0, 0
        _generators[made._cdata] = made  # operations get another Python object of the same generator
        return made

    def __init__(self, device: Any = NAME) -> None:
        pass

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0)

    def manual_seed(self, seed: int) -> MockGenerator:
        self._seed, self._drawn = seed, 0
        return self

    def initial_seed(self) -> int:
        return self._seed

    def get_state(self) -> torch.Tensor:
        data = (self._seed % 2**64).to_bytes(8, "little") + self._drawn.to_bytes(8, "little")
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> MockGenerator:
        if state.numel() != STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")
        data = bytes(state.tolist())
        self._seed, self._drawn = int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")
        return self

    def next(self) -> torch.Generator:
        """A CPU generator for the next draw, other than those of all seeds on a CPU."""
        self._drawn += 1
        return _CPU_GENERATOR().manual_seed(hash((self._seed, self._drawn, NAME.encode()[0])) % 2**63)


class _AnyGenerator(_CPU_GENERATOR):
    """Stands in for `torch.Generator` while the device is in use."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return MockGenerator() if torch.device(device).type == NAME else _CPU_GENERATOR(device)


class _Constructors(TorchFunctionMode):
    """Makes tensors from Python numbers by way of the CPU, as torch does, but where it can be seen."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device).type == NAME:
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        return func(*args, **kwargs)


class MockDevice(TorchDispatchMode):
    """The device; see `in_use` and `counting`."""

    def __init__(self) -> None:
        super().__init__()
        register()
        self.counts = Counts()
        self._pinned: Pinned = {}

    @contextmanager
    def in_use(self) -> Iterator[MockDevice]:
        """Within, tensors can be made on `mock:0`."""
        torch.Generator = _AnyGenerator
        _device_module.counts = lambda: self.counts
        try:
            with _Constructors(), self:
                yield self
        finally:
            torch.Generator = _CPU_GENERATOR

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_composite(func):  # in inference mode they arrive before they are divided into those that a device has
            with self:
                divided = func.decompose(*args, **kwargs or {})
            if divided is not NotImplemented:
                return divided
        return _run(func, args, kwargs or {}, self.counts, self._pinned)

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Count what happens inside, apart from what happens outside."""
        outer, self.counts = self.counts, Counts()
        try:
            yield self.counts
        finally:
            self.counts = outer


class Stream:
    """A queue of copies that are only done when somebody waits for an event behind them.

    So a tensor has wrong values as long as nobody did, and a host buffer that is filled again too soon spoils the copy.
    """

    def __init__(self, device: Any = None) -> None:
        self.pending: list[Callable[[], Any]] = []

    def wait_event(self, event: Event) -> None:
        event.finish()


class Event:
    """The point of a stream up to which `record` found it."""

    def __init__(self) -> None:
        self._before: list[Callable[[], Any]] = []

    def record(self, stream: Stream) -> None:
        self._before = stream.pending

    def synchronize(self) -> None:
        if self._before:
            _device_module.counts().waits[_line()] += 1
        self.finish()

    def finish(self) -> None:
        while self._before:
            self._before.pop(0)()


class _DeviceModule(_DummyBackendModule):
    """The counterpart of `torch.cuda`."""

    Stream, Event = Stream, Event

    def __init__(self) -> None:
        self._default = self._current = Stream()
        self.counts: Callable[[], Counts] = Counts  # those of the device in use

    def current_stream(self, device: Any = None) -> Stream:
        return self._current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        outer, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = outer

    @property
    def aside(self) -> Stream | None:
        """The current stream unless it is the default one, in which copies are done at once."""
        return None if self._current is self._default else self._current


_device_module = _DeviceModule()


def register() -> None:
    """Name torch's device type for other backends, once per process, and let optimizers batch its tensors.

    The first backward pass of a process starts one thread per device that is known by then, so call this before it.
    """
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_device_module)
        _foreach_supported_types.append(MockTensor)


@cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _run(func: Any, args: Any, kwargs: Any, counts: Counts, pinned: Pinned) -> Any:
    """Run one operation on the CPU, after the checks of a GPU, and wrap results that belong to the device."""
    if func in (aten._pin_memory.default, aten.is_pinned.default):
        return _pin(func, args[0], pinned)
    if func is aten._to_copy.default:
        return _convert(args[0], dict(kwargs), counts, pinned)
    if func is aten.copy_.default:
        return _copy(*args, **kwargs, counts=counts, pinned=pinned)
    if func is aten._foreach_copy_.default:
        for pair in zip(*args[:2], strict=True):
            _copy(*pair, counts=counts, pinned=pinned)
        return None
    leaves = pytree.arg_tree_leaves(*args, **kwargs)
    mine = [leaf for leaf in leaves if isinstance(leaf, MockTensor)]
    others = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, MockTensor)]
    wanted = kwargs.get("device")
    on_device = bool(mine) if wanted is None else torch.device(wanted).type == NAME
    if mine:
        _check_devices(func, args, others, counts)
        if func in WAITING:
            counts.waits[_line()] += 1
        if func is aten._local_scalar_dense.default:
            counts.to_host[_line()] += 1
    if wanted is not None and on_device:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if kwargs.get("pin_memory"):
        made = func(*args, **{**kwargs, "pin_memory": False})
        pinned[made.untyped_storage().data_ptr()] = made
        return made

    def unwrap(leaf: Any) -> Any:
        if isinstance(leaf, _CPU_GENERATOR):
            generator = _generators.get(leaf._cdata)
            if (generator is not None) != on_device:
                wanted, found = (NAME, "cpu") if on_device else ("cpu", f"{NAME}:0")
                raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
            return leaf if generator is None else generator.next()
        return leaf.raw if isinstance(leaf, MockTensor) else leaf

    def wrap(leaf: Any) -> Any:
        return MockTensor(leaf) if isinstance(leaf, torch.Tensor) else leaf

    run = FUSED.get(func, func)
    result = run(*pytree.tree_map(unwrap, args), **pytree.tree_map(unwrap, kwargs))
    if not on_device:
        return result
    _count_work(func, args, kwargs, result, counts)
    if func.is_view and not mine[0].is_inference():  # as everywhere, no inference tensor either
        with torch.inference_mode(False):
            return pytree.tree_map(wrap, result)
    return pytree.tree_map(wrap, result)


def _count_work(func: Any, args: Any, kwargs: Any, result: Any, counts: Counts) -> None:
    if func.is_view or func in WITHOUT_KERNEL:
        return
    counts.kernels += 1
    raw = pytree.tree_map(lambda leaf: leaf.raw if isinstance(leaf, MockTensor) else leaf, (args, kwargs))
    moved = [leaf for leaf in pytree.tree_leaves((raw, result)) if isinstance(leaf, torch.Tensor)]
    counts.kernel_bytes += sum(leaf.nbytes for leaf in moved)
    if formula := flop_registry.get(func._overloadpacket):
        counts.flops += formula(*raw[0], **raw[1], out_val=result)


def _check_devices(func: Any, args: Any, others: list[torch.Tensor], counts: Counts) -> None:
    """Raise as a GPU does if tensors of different devices meet; count what indexing with a mask or the CPU costs."""
    if func in INDEXING:
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            counts.waits[_line()] += 1
        for index in indices:
            if not isinstance(index, MockTensor) and isinstance(args[0], MockTensor):  # copied first
                counts.waits[_line()] += 1
                counts.to_device[_line()] += 1
        others = [other for other in others if all(other is not index for index in indices)]
    changed = args[0] if func._schema.is_mutable else None
    for other in others:
        if other.dim() > 0 or func in JOINING or other is changed:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices,"
                f" {NAME}:0 and cpu! ({func})"
            )


def _convert(x: torch.Tensor, kwargs: dict[str, Any], counts: Counts, pinned: Pinned) -> torch.Tensor:
    """`x.to(...)`."""
    device = kwargs.pop("device", None)
    there = x.device.type == NAME if device is None else torch.device(device).type == NAME
    non_blocking = kwargs.pop("non_blocking", False)
    if kwargs.pop("pin_memory", False):
        raise NotImplementedError("pin_memory of a conversion")
    raw = x.raw if isinstance(x, MockTensor) else x
    if there != isinstance(x, MockTensor):
        _count_copy(raw, there, non_blocking, counts, pinned)
    if there and not isinstance(x, MockTensor) and _device_module.aside is not None:
        made = torch.empty_like(raw, dtype=kwargs.get("dtype")).fill_(-1)
        _device_module.aside.pending.append(lambda: made.copy_(raw))
    else:
        made = aten._to_copy.default(raw, **kwargs)
    return MockTensor(made) if there else made


def _copy(
    to: torch.Tensor, value: torch.Tensor, non_blocking: bool = False, *, counts: Counts, pinned: Pinned
) -> torch.Tensor:
    """`to.copy_(value)`."""
    here, there = isinstance(value, MockTensor), isinstance(to, MockTensor)
    if here != there:
        _count_copy(to if here else value, there, non_blocking, counts, pinned)
    aten.copy_.default(to.raw if there else to, value.raw if here else value)
    return to


def _count_copy(host: torch.Tensor, to_device: bool, non_blocking: bool, counts: Counts, pinned: Pinned) -> None:
    """Count a copy; the host waits for it unless it need not and its memory is pinned."""
    (counts.to_device if to_device else counts.to_host)[_line()] += 1
    counts.copied_bytes += host.nbytes
    if not (non_blocking and _is_pinned(host, pinned)):
        counts.waits[_line()] += 1


def _pin(func: Any, x: torch.Tensor, pinned: Pinned) -> Any:
    if isinstance(x, MockTensor):
        raise RuntimeError(f"cannot pin '{x.type()}' only dense CPU tensors can be pinned")
    if func is aten.is_pinned.default:
        return _is_pinned(x, pinned)
    made = x.clone()
    pinned[made.untyped_storage().data_ptr()] = made
    return made


def _is_pinned(x: torch.Tensor, pinned: Pinned) -> bool:
    return x.untyped_storage().data_ptr() in pinned


def _line() -> str:
    """The innermost line of Starling that is being executed in this thread."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            return f"{path.relative_to(SOURCE)}:{frame.f_lineno}"
        frame = frame.f_back
    return UNCLEAR


# torch uses these cells on GPUs and other devices, but has no kernels of them for CPUs.


def _lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, g, o = gates.chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], dim=1)


def _lstm_cell_backward(
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    i, f, g, o = workspace.chunk(4, dim=1)
    grad_h = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_c = grad_h * o * (1 - cy.tanh().square())
    if grad_cy is not None:
        grad_c = grad_c + grad_cy
    parts = [
        grad_c * g * i * (1 - i),
        grad_c * cx * f * (1 - f),
        grad_c * i * (1 - g.square()),
        grad_h * cy.tanh() * o * (1 - o),
    ]
    gates = torch.cat(parts, dim=1)
    return gates, grad_c * f, gates.sum(0) if has_bias else None


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    (ir, iz, i_n), (hr, hz, hn) = input_gates.chunk(3, dim=1), hidden_gates.chunk(3, dim=1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], dim=1)


def _gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    r, z, n, hx, hn = workspace.chunk(5, dim=1)
    grad_n = grad_hy * (1 - z) * (1 - n.square())
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_r = grad_n * hn * r * (1 - r)
    grad_input = torch.cat([grad_r, grad_z, grad_n], dim=1)
    grad_hidden = torch.cat([grad_r, grad_z, grad_n * r], dim=1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hy * z, *biases


FUSED: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
