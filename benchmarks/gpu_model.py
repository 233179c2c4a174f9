"""A model of the speed of acts and updates on a GPU, from what a mock device counts; nothing here was measured on one.

    .venv/bin/python benchmarks/gpu_model.py

Kernels are launched one after the other by the host and computed one after the other by the device, so an act or an
update takes the longer of the two, and the host's waits on top.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from starling import hardware
from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.tools.benchmark.workload import Work

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.mock_device import NAME, Counts, MockDevice  # type: ignore[import-not-found]

AGENTS = {
    "ppo-cartpole": [],
    "dqn-cartpole": [],
    "sac-pendulum": [],
    "impala-cartpole": [],
    "dqn-pong": ["env.num=8"],
}
WARM_UP = 3
"""Calls before the counted one, which allocate moments and learn what noise is asked for."""


@dataclass(frozen=True)
class Gpu:
    """Assumptions, of the order of a data-center GPU of 2020 on PCIe 4, in float32 without TF32."""

    launch: float = 6e-6  # seconds of the host per operation of eager torch
    kernel: float = 3e-6  # seconds of the device, at least
    flops: float = 12e12  # per second
    memory: float = 1.2e12  # bytes per second
    copy: float = 10e-6  # seconds of a copy, beside its bytes
    link: float = 20e9  # bytes per second, between host and device
    wait: float = 20e-6  # seconds until the host goes on after the device is done

    def parts(self, counts: Counts) -> dict[str, float]:
        """Seconds of one act or update, by what causes them."""
        waits, to_device, to_host = counts.totals
        work = counts.flops / self.flops + counts.kernel_bytes / self.memory
        return {
            "launches": counts.kernels * self.launch,
            "the device": max(counts.kernels * self.kernel, work),
            "copies": (to_device + to_host) * self.copy + counts.copied_bytes / self.link,
            "waits": waits * self.wait,
        }

    def seconds(self, counts: Counts) -> float:
        """Seconds of one act or update; host and device work at the same time."""
        parts = self.parts(counts)
        return max(parts["launches"], parts["the device"]) + parts["copies"] + parts["waits"]


def counts_of(preset: str, overrides: list[str], device: MockDevice) -> dict[str, Counts]:
    """Count the operations of one act and of one update."""
    fixed = ["runtime=inline", f"device={NAME}", "compile=false", "precision=float32"]
    work = Work(RunPlan.from_config(load(preset, [*overrides, *fixed])))
    found = {}
    for name, call in (("act", work.infer), ("update", work.train)):
        for _ in range(WARM_UP):
            call()
        with device.counting() as found[name]:
            call()
    work.close()
    return found


def main() -> None:
    hardware.DEVICES = (*hardware.DEVICES, NAME)
    print("| agent | | kernels | GFLOP | MB moved by kernels | kB copied | waits | model: ms | most by |")
    print("|---|---|---|---|---|---|---|---|---|")
    gpu = Gpu()
    with MockDevice().in_use() as device:
        for preset, overrides in AGENTS.items():
            for name, counts in counts_of(preset, overrides, device).items():
                parts = gpu.parts(counts)
                numbers = f"{counts.kernels:,} | {counts.flops / 1e9:.3f} | {counts.kernel_bytes / 1e6:.1f}"
                numbers += f" | {counts.copied_bytes / 1e3:.1f} | {counts.totals[0]}"
                most = max(parts, key=lambda part: parts[part])
                print(f"| {preset} | {name} | {numbers} | {1000 * gpu.seconds(counts):.2f} | {most} |", flush=True)


if __name__ == "__main__":
    main()
