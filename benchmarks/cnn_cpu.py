"""Duration of convolutional networks on a CPU: with plain and channels-last inputs, and in mixed precision.

Training is forward, backward, and an optimizer step on uint8 images of 4x84x84; inference is forward only. All take
turns, so that a busy machine slows them equally. starling.nets.encoders uses the faster layout; mixed precision with
channels-last inputs is `precision=bfloat16`, which is for training only.

    python benchmarks/cnn_cpu.py [--kind nature] [--rounds 10] [--threads 1 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise, product
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
PLAIN, LAST, MIXED = "plain", "channels_last", "bfloat16"


def training(net: Network, batch: int, mixed: bool) -> Callable[[], None]:
    """A step of Adam for a loss of [B] images."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    obs = torch.randint(0, 256, (1, batch, 4, 84, 84), dtype=torch.uint8)
    first = torch.zeros(1, batch, dtype=torch.bool)

    def once() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = net.unroll(obs, first, None, {}, {})[0]["q"].float().square().mean()
        loss.backward()
        optimizer.step()

    return once


def inference(net: Network, batch: int, channels_last: bool) -> Callable[[], None]:
    """Q values of [B] images without a graph; gradients stay enabled for channels-last, which requires it."""
    net.requires_grad_(False)
    obs = torch.randint(0, 256, (batch, 4, 84, 84), dtype=torch.uint8)
    first = torch.zeros(batch, dtype=torch.bool)

    def once() -> None:
        with torch.set_grad_enabled(channels_last):
            net.step(obs, first, {})

    return once


def timer(kind: str, work: str, batch: int, variant: str) -> Callable[[], float]:
    """A warmed-up function that does the work a few times and returns the milliseconds per repetition."""
    torch.manual_seed(0)
    net = build_network(ENV, NetConfig(torso=TorsoConfig(kind=kind)), {"q": HeadSpec("q")})
    for module in net.modules():
        if isinstance(module, Image):
            module.channels_last = variant != PLAIN
    once = training(net, batch, variant == MIXED) if work == "training" else inference(net, batch, variant != PLAIN)
    repeats = max(1, 256 // batch)

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            once()
        return (time.perf_counter() - start) / repeats * 1e3

    timed()
    return timed


def compare(kind: str, work: str, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    """Time all variants in turns; returns milliseconds, and the ratio of each to the previous one."""
    torch.set_num_threads(threads)
    variants = [PLAIN, LAST, MIXED] if work == "training" else [PLAIN, LAST]
    timers = {variant: timer(kind, work, batch, variant) for variant in variants}
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for i in range(rounds):
        for variant in variants if i % 2 else variants[::-1]:
            times[variant].append(timers[variant]())
    ratios = {
        f"{before} / {variant}": spread([a / b for a, b in zip(times[before], times[variant], strict=True)])
        for before, variant in pairwise(variants)
    }
    milliseconds = {variant: spread(taken) for variant, taken in times.items()}
    return {"work": work, "batch": batch, "threads": threads, "milliseconds": milliseconds, "ratios": ratios}


def line(result: dict[str, Any]) -> str:
    """One comparison as text: medians, and the extremes in brackets."""
    shown = [
        f"{name} {value['median']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
        for name, value in {**result["milliseconds"], **result["ratios"]}.items()
    ]
    return f"{result['work']} batch {result['batch']} threads {result['threads']}, ms: {', '.join(shown)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="nature", help="torso: nature or impala")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of each variant")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of torch threads")
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
