"""Weights in shared memory: a reader never gets a mixture of two versions."""

import itertools
import os
import time

import torch
from torch import nn

from starling.runtime.shared_weights import SharedWeights, WeightReader, WeightWriter, copy_size
from starling.types import Progress


def model(size: int = 300) -> nn.Module:
    net = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size), nn.Linear(size, 3))
    net.register_buffer("count", torch.zeros((), dtype=torch.int64))
    return net


def fill(net: nn.Module, value: int) -> None:
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.fill_(value)


def test_published_weights_are_read():
    source, copy = model(), model()
    shared_weights = SharedWeights(copy_size(source))
    writer, reader = WeightWriter(shared_weights, source), WeightReader(shared_weights, copy)
    assert reader.refresh() == Progress()
    for version in (3, 4, 9):
        nn.init.normal_(source[0].weight, std=version)
        writer.publish(Progress(10 * version, version, 0.125))
        assert reader.refresh() == Progress(10 * version, version, 0.125)
        for own, theirs in zip(copy.state_dict().values(), source.state_dict().values(), strict=True):
            assert torch.equal(own, theirs)


def test_weights_are_fetched_every_so_many_updates():
    source, copy = model(), model()
    shared_weights = SharedWeights(copy_size(source))
    writer, reader = WeightWriter(shared_weights, source), WeightReader(shared_weights, copy, every=5)
    fetched = []
    for updates in (7, 8, 11, 12, 13, 30, 3):  # the last ones are those of a learner that went back
        fill(source, updates)
        writer.publish(Progress(updates=updates))
        fetched.append(reader.refresh().updates)
        assert (copy[0].weight == fetched[-1]).all()
    assert fetched == [7, 7, 7, 12, 12, 30, 3]


def test_reading_an_unchanged_version_copies_nothing():
    source, copy = model(), model()
    shared_weights = SharedWeights(copy_size(source))
    WeightWriter(shared_weights, source).publish(Progress(updates=1))
    reader = WeightReader(shared_weights, copy)
    reader.refresh()
    fill(copy, 5)
    reader.refresh()
    assert (copy[0].weight == 5).all()


def test_no_torn_weights_while_a_writer_publishes_continuously():
    """Every weight of a version is its number modulo 3; the writer laps the reader all the time."""
    sides, copy = [model(600) for _ in range(3)], model(600)
    for value, side in enumerate(sides):
        fill(side, value)
    shared_weights = SharedWeights(copy_size(copy))
    writers = [WeightWriter(shared_weights, side) for side in sides]
    writers[0].publish(Progress(updates=0))
    pid = os.fork()
    if pid == 0:
        try:
            for version in itertools.count(1):
                writers[version % 3].publish(Progress(updates=version))
        finally:
            os._exit(0)
    try:
        reader, versions = WeightReader(shared_weights, copy), set()
        end = time.monotonic() + 1.5
        while time.monotonic() < end or len(versions) <= 3:
            progress = reader.refresh()
            assert all((tensor == progress.updates % 3).all() for tensor in copy.state_dict().values())
            versions.add(progress.updates)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_reader_that_is_lapped_during_a_copy_copies_again():
    source, copy = model(), model()
    shared_weights = SharedWeights(copy_size(source))
    writer, reader = WeightWriter(shared_weights, source), WeightReader(shared_weights, copy)

    def publish(version: int) -> None:
        fill(source, version)
        writer.publish(Progress(updates=version))

    class Lapped:
        """A tensor during whose first copy the writer publishes two more versions."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor, self.times = tensor, 0

        def copy_(self, other: torch.Tensor) -> None:
            self.times += 1
            if self.times == 1:
                publish(2)
                publish(3)
            self.tensor.copy_(other)

    publish(1)
    lapped = reader._view.mine[1] = Lapped(reader._view.mine[1])
    assert reader.refresh().updates == 3
    assert lapped.times == 2
    assert all((tensor == 3).all() for tensor in copy.state_dict().values())


def test_copy_is_transferred_as_bytes_and_repeated_if_lapped():
    source, copy = model(), model()
    here, there = SharedWeights(copy_size(source)), SharedWeights(copy_size(source))
    writer, reader = WeightWriter(here, source), WeightReader(there, copy)
    tries = []

    def publish(version: int) -> None:
        fill(source, version)
        writer.publish(Progress(updates=version))

    def take(number):
        tries.append(number)
        if len(tries) == 1:
            publish(2)
            publish(3)
        return number, here.bytes_of(number).copy()

    publish(1)
    number, side = here.newest(0, take)
    assert (number, tries) == (3, [1, 3])
    assert here.newest(number, take) is None
    there.accept(side)
    assert reader.refresh().updates == 3
    assert all((tensor == 3).all() for tensor in copy.state_dict().values())
