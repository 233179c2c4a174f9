"""The mock device itself: each property that makes it like a GPU."""

import copy

import numpy as np
import pytest
import torch
from support.mock_device import STATE_BYTES, MockTensor
from torch import nn
from torch.optim.optimizer import _default_to_fused_or_foreach

MOCK = "mock:0"


def on_mock(*values):
    return torch.tensor(values, device=MOCK)


def lines(counter):
    return {line.partition(":")[0] for line in counter}


def test_tensors_compute_what_a_cpu_does(mock_device):
    x = torch.randn(4, 3)
    there = x.to(MOCK)
    assert {str(x.device) for x in (there, there @ there.T, torch.zeros_like(there))} == {MOCK}
    assert torch.equal((there @ there.T).softmax(-1).cpu(), (x @ x.T).softmax(-1))
    assert str(torch.arange(3, device="mock").device) == MOCK
    assert torch.zeros_like(there, device="cpu").device.type == "cpu"


def test_views_share_memory_and_in_place_operations_return_their_tensor(mock_device):
    x = torch.zeros(2, 3, device=MOCK)
    assert x.view(6).add_(1.0) is not x
    x[0].mul_(2.0)
    assert x.cpu().tolist() == [[2.0] * 3, [1.0] * 3]
    assert x.add_(1.0) is x


@pytest.mark.parametrize("operation", [torch.add, torch.mul, lambda x, y: torch.where(y > 0, x, y), torch.minimum])
def test_devices_do_not_mix_but_for_scalars(mock_device, operation):
    here = torch.ones(2)
    with pytest.raises(RuntimeError, match=r"same device, but found at least two devices, mock:0 and cpu"):
        operation(on_mock(1.0, 2.0), here)
    assert str(operation(on_mock(1.0, 2.0), torch.tensor(3.0)).device) == MOCK


def test_scalars_are_not_joined_nor_changed_across_devices(mock_device):
    with pytest.raises(RuntimeError, match="two devices"):
        torch.stack([on_mock(1.0).sum(), torch.tensor(1.0)])
    with pytest.raises(RuntimeError, match="two devices"):
        torch.tensor(1.0).add_(on_mock(1.0).sum())
    with pytest.raises(TypeError, match="convert mock:0 device type tensor to numpy"):
        on_mock(1.0).numpy()


WAITS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "float": lambda x: float(x.sum()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "assign by mask": lambda x: x.clone().__setitem__(x > 0, x[:1]),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "if": lambda x: 1 if x.sum() > 0 else 2,
}


@pytest.mark.parametrize("operation", WAITS.values(), ids=WAITS)
def test_operations_that_make_the_host_wait_are_counted(mock_device, operation):
    x = on_mock(1.0)
    with mock_device.counting() as counts:
        operation(x)
    assert counts.waits.total() >= 1


FREE = {
    "arithmetic": lambda x: (2.0 * x + 1.0).sum(),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "index": lambda x: x[torch.zeros(2, dtype=torch.int64, device=MOCK)],
    "assign by index": lambda x: x.clone().__setitem__(torch.zeros(1, dtype=torch.int64, device=MOCK), x[:1]),
    "slice": lambda x: x[:1].view(1, 1).expand(2, 1),
    "new": lambda x: torch.full_like(x, 2.0) + torch.arange(1, device=MOCK) + x.new_zeros(1),
    "topk": lambda x: x.topk(1),
    "one_hot": lambda x: nn.functional.one_hot(x.long(), 3),
}


@pytest.mark.parametrize("operation", FREE.values(), ids=FREE)
def test_operations_that_stay_on_the_device_are_free(mock_device, operation):
    x = on_mock(1.0)
    with mock_device.counting() as counts:
        operation(x)
    assert counts.totals == (0, 0, 0)


def test_copies_are_counted_by_direction(mock_device):
    x, here = on_mock(1.0, 2.0), torch.ones(2)
    with mock_device.counting() as counts:
        x.copy_(here)
        torch._foreach_copy_([x, x], [here, here])
        x.copy_(x)
        here.copy_(x)
        x[torch.tensor([0])]
    assert counts.totals == (5, 4, 1)


def test_copies_from_pinned_memory_need_not_wait(mock_device):
    with mock_device.counting() as counts:
        pageable = torch.ones(2).to(MOCK, non_blocking=True)
        pinned = torch.empty(4, pin_memory=True)
        pinned.fill_(3.0)
        there = pinned[:2].to(MOCK, non_blocking=True)
        pinned.to(MOCK)
        assert torch.ones(2).pin_memory().is_pinned()
        assert not torch.ones(2).is_pinned()
    assert counts.totals == (2, 3, 0)
    assert (there + pageable).tolist() == [4.0, 4.0]


def test_lines_of_starling_are_named(mock_device):
    from starling import tree

    x = on_mock(1.0)
    with mock_device.counting() as counts:
        tree.to_numpy({"x": x})
        x.cpu()
    assert lines(counts.to_host) == {"tree.py", "elsewhere"}


def test_generators_belong_to_a_device(mock_device):
    def draw(generator):
        return torch.rand(4, generator=generator, device=generator.device).tolist()

    mine, other = (torch.Generator(MOCK).manual_seed(3) for _ in range(2))
    first, second = draw(mine), draw(mine)
    assert first != second
    assert [draw(other), draw(other)] == [first, second]
    other.set_state(mine.get_state())
    assert draw(other) == draw(mine)
    assert draw(torch.Generator().manual_seed(3)) != first
    with pytest.raises(RuntimeError, match="Expected a 'mock' device type for generator but found 'cpu'"):
        torch.rand(4, generator=torch.Generator(), device=MOCK)
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'mock:0'"):
        torch.rand(4, generator=mine)
    with pytest.raises(RuntimeError, match="wrong size"):
        mine.set_state(torch.Generator().get_state())
    assert mine.get_state().numel() == STATE_BYTES


def test_inference_tensors_are_not_changed_outside(mock_device):
    x = on_mock(1.0)
    with torch.inference_mode():
        y = x + 1.0
        y.add_(1.0)
        x.add_(1.0)
        view = x[:1]
    assert y.is_inference()
    assert not x.is_inference()
    assert not view.is_inference()
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        y.add_(1.0)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("single", [False, True], ids=["sequence", "cell"])
def test_recurrent_cells_and_their_gradients_equal_those_of_a_cpu(mock_device, cell, single):
    torch.manual_seed(0)
    here = cell(3, 4)
    there = copy.deepcopy(here).to(MOCK)
    x = torch.randn(5, 2, 3)

    def run(network, x):
        if single:
            state = x.new_zeros(2, 4)
            if cell is nn.LSTM:
                return torch.lstm_cell(x[0], (state, state), *network.all_weights[0])[0]
            return torch.gru_cell(x[0], state, *network.all_weights[0])
        return network(x)[0]

    outputs = [run(here, x), run(there, x.to(MOCK))]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(outputs[1].cpu(), outputs[0])
    for mine, theirs in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


def test_fused_cells_are_used_as_on_a_gpu(mock_device, monkeypatch):
    from support import mock_device as module

    used, cell = [], module.FUSED[torch.ops.aten._thnn_fused_lstm_cell.default]
    monkeypatch.setitem(
        module.FUSED, torch.ops.aten._thnn_fused_lstm_cell.default, lambda *args: used.append(1) or cell(*args)
    )
    nn.LSTM(3, 4).to(MOCK)(torch.zeros(5, 2, 3, device=MOCK))
    assert len(used) == 5


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 2))


def gradients(model, x):
    return torch.autograd.grad(model(x).square().sum(), [*model.parameters()])


def test_gradients_equal_those_of_a_cpu(mock_device):
    here, x = network(), torch.randn(2, 1, 4, 4)
    there = copy.deepcopy(here).to(MOCK)
    for mine, theirs in zip(gradients(there, x.to(MOCK)), gradients(here, x), strict=True):
        assert str(mine.device) == MOCK
        torch.testing.assert_close(mine.cpu(), theirs)


@pytest.mark.parametrize(
    "implementation", [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}]
)
def test_optimizers_move_parameters_as_on_a_cpu(mock_device, implementation):
    here = network()
    there = copy.deepcopy(here).to(MOCK)
    optimizers = [
        torch.optim.Adam(here.parameters(), lr=0.1),
        torch.optim.Adam(there.parameters(), lr=0.1, **implementation),
    ]
    x = torch.randn(2, 1, 4, 4)
    for _ in range(3):
        for model, optimizer in zip((here, there), optimizers, strict=True):
            parameters = [*model.parameters()]
            for parameter, gradient in zip(parameters, gradients(model, x.to(parameters[0].device)), strict=True):
                parameter.grad = gradient
            with mock_device.counting() as counts:
                optimizer.step()
            assert counts.totals == (0, 0, 0)
    for mine, theirs in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
    if not implementation.get("foreach"):
        assert _default_to_fused_or_foreach([*there.parameters()], differentiable=False) == (False, True)
    step = next(iter(optimizers[1].state.values()))["step"]
    assert isinstance(step, MockTensor) == ("foreach" not in implementation)


def test_modules_move_with_parameters_and_buffers(mock_device):
    here = nn.BatchNorm1d(3)
    there = copy.deepcopy(here).to(MOCK)
    assert {str(tensor.device) for tensor in there.state_dict().values()} == {MOCK}
    assert all(isinstance(parameter, nn.Parameter) and parameter.requires_grad for parameter in there.parameters())
    there(torch.randn(4, 3, device=MOCK))
    here.load_state_dict(there.state_dict())
    assert torch.equal(here.running_mean, there.running_mean.cpu())
    again = copy.deepcopy(there)
    again.weight.data.fill_(7.0)
    assert isinstance(again.weight, nn.Parameter)
    assert again.weight.requires_grad
    assert there.weight.tolist() == [1.0] * 3


def test_parameters_can_become_views_of_one_buffer(mock_device):
    layer = nn.Linear(2, 2).to(MOCK)
    flat = torch.zeros(6, device=MOCK)
    layer.weight.data = flat[:4].view(2, 2)
    flat.add_(1.0)
    assert layer.weight.tolist() == [[1.0] * 2] * 2
    assert layer(torch.ones(1, 2, device=MOCK)).requires_grad


def test_arrays_do_not_reach_the_device_unnoticed(mock_device):
    with mock_device.counting() as counts:
        torch.from_numpy(np.ones(2)).to(MOCK)
        torch.tensor(1.0, device=MOCK)
        torch.as_tensor([1.0], device=MOCK)
    assert counts.to_device.total() == 3


def test_work_is_counted_per_kernel(mock_device):
    a, b = torch.ones(3, 4).to("mock"), torch.ones(4, 5).to("mock")
    with mock_device.counting() as counts:
        (a @ b).t().relu()
    assert counts.kernels == 2, "a view is none"
    assert counts.flops == 2 * 3 * 4 * 5
    assert counts.kernel_bytes == 4 * (12 + 20 + 15) + 4 * (15 + 15)
    with mock_device.counting() as counts:
        a.cpu()
    assert (counts.kernels, counts.copied_bytes) == (0, 48)
