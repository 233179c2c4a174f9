"""How long convolutional networks take on a CPU, with plain and with channels-last inputs.

Training is forward, backward and an optimizer step on uint8 images of 4x84x84; inference is forward alone. Both layouts
take turns in changing order, so that a busy machine slows them alike. What wins is kept in starling.nets.encoders.

    python benchmarks/cnn_cpu.py [--kind nature] [--rounds 10] [--threads 1 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from machine import describe, spread

from starling.config.parts import NetConfig, TorsoConfig
from starling.nets.build import HeadSpec, Network, build_network
from starling.nets.encoders import Image
from starling.types import EnvSpec

ENV = EnvSpec("images", spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6))
WORK = [("training", 256), ("training", 32), ("inference", 8), ("inference", 32), ("inference", 256)]


def training(net: Network, batch: int) -> Callable[[], None]:
    """A step of Adam on a loss of [B] images."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    obs = torch.randint(0, 256, (1, batch, 4, 84, 84), dtype=torch.uint8)
    first = torch.zeros(1, batch, dtype=torch.bool)

    def once() -> None:
        optimizer.zero_grad()
        net.unroll(obs, first, None, {}, {})[0]["q"].square().mean().backward()
        optimizer.step()

    return once


def inference(net: Network, batch: int, channels_last: bool) -> Callable[[], None]:
    """Q-values of [B] images; no graph is built, though gradients are left on where they call for channels-last."""
    net.requires_grad_(False)
    obs = torch.randint(0, 256, (batch, 4, 84, 84), dtype=torch.uint8)
    first = torch.zeros(batch, dtype=torch.bool)

    def once() -> None:
        with torch.set_grad_enabled(channels_last):
            net.step(obs, first, {})

    return once


def timer(kind: str, work: str, batch: int, channels_last: bool) -> Callable[[], float]:
    """A function that does the work a few times and says what one took, in milliseconds; warmed up."""
    torch.manual_seed(0)
    net = build_network(ENV, NetConfig(torso=TorsoConfig(kind=kind)), {"q": HeadSpec("q")})
    for module in net.modules():
        if isinstance(module, Image):
            module.channels_last = channels_last
    once = training(net, batch) if work == "training" else inference(net, batch, channels_last)
    repeats = max(1, 256 // batch)

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            once()
        return (time.perf_counter() - start) / repeats * 1e3

    timed()
    return timed


def compare(kind: str, work: str, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    """Both layouts in turns, and how many times as long the plain one takes."""
    torch.set_num_threads(threads)
    timers = {last: timer(kind, work, batch, last) for last in (False, True)}
    times: dict[bool, list[float]] = {False: [], True: []}
    for i in range(rounds):
        for last in (i % 2 == 0, i % 2 == 1):
            times[last].append(timers[last]())
    ratios = [plain / last for plain, last in zip(times[False], times[True], strict=True)]
    case = {"work": work, "batch": batch, "threads": threads}
    return {**case, "plain_ms": spread(times[False]), "channels_last_ms": spread(times[True]), "ratio": spread(ratios)}


def line(result: dict[str, Any]) -> str:
    """One comparison for people: medians, and the extremes in brackets."""
    shown = {
        name: f"{result[name]['median']:.2f} [{result[name]['low']:.2f}, {result[name]['high']:.2f}]"
        for name in ("plain_ms", "channels_last_ms", "ratio")
    }
    return (
        f"{result['work']} batch {result['batch']} threads {result['threads']}: plain {shown['plain_ms']} ms,"
        f" channels-last {shown['channels_last_ms']} ms, ratio {shown['ratio']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="nature", help="torso: nature or impala")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true", help="results as JSON on the last line")
    args = parser.parse_args()
    results = []
    for (work, batch), threads in product(WORK, args.threads):
        results.append(compare(args.kind, work, batch, threads, args.rounds))
        print(line(results[-1]), flush=True)
    if args.json:
        settings = {"kind": args.kind, "rounds": args.rounds, "threads": args.threads}
        print(json.dumps({**describe("starling-rl", "torch", "numpy"), "settings": settings, "results": results}))


if __name__ == "__main__":
    main()
