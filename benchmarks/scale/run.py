"""Predicted speed of a run on 1 to 1000 nodes, from the cost of each role on one; checked on 1, 2, and 4 simulated
nodes.

Each simulated node is a raylet on this machine, and the env waits instead of computing, so that the actors of several
nodes fit on its cores; `algo.max_lag` is large enough for all of them to act at the same time. Costs come from the run
on one node; runs on more nodes are compared with the model. Two cases: slow envs, where more nodes help, and quick
ones, where the cores of this machine are soon the limit.

    .venv/bin/python benchmarks/scale/run.py --plot docs/images/scale.png --json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model import Costs, Prediction, predict

sys.path.insert(0, str(Path(__file__).parents[1]))
from machine import describe

ACTORS, ENVS_PER_ACTOR = 2, 4  # actors per node, envs per actor
CASES = {"slow envs": 0.02, "quick envs": 0.002}
MEASURED, PREDICTED = (1, 2, 4), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
SETTINGS = [
    *["runtime=ray", "env.id=slow:Slow", "algo.unroll=20", "algo.batch=8", "net.torso.hidden=[64]", "threads=1"],
    "algo.max_lag=32",
    *["stop={env_steps: 1000000000}", "log.every=100000000", "eval.every=null", "ray.timeout=60"],
]
STORE = 200 * 2**20


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """The address of a cluster with a head without CPUs and `nodes` further nodes."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    ray_cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
    try:
        for _ in range(nodes):
            ray_cluster.add_node(num_cpus=ACTORS, object_store_memory=STORE, wait=True)
        yield ray_cluster.address
    finally:
        ray_cluster.shutdown()  # type: ignore[no-untyped-call]


def measure(nodes: int, env_seconds: float, seconds: float) -> tuple[float, Costs]:
    """Env steps per second on this number of nodes, and the cost of each role there."""
    from starling import tree
    from starling.config.load import load
    from starling.hardware import set_up_torch
    from starling.launch.plan import RunPlan, layout_of, plan_threads
    from starling.launch.runtime import build_runtime

    with cluster(nodes) as address:
        actors = nodes * ACTORS
        topology = [
            f"ray.address={address}",
            f"ray.nodes={nodes}",
            f"actors={actors}",
            f"env.num={actors * ENVS_PER_ACTOR}",
        ]
        run_plan = RunPlan.from_config(
            load("impala-cartpole", [*SETTINGS, *topology, f"env.args={{seconds: {env_seconds}}}"])
        )
        set_up_torch(plan_threads(run_plan))
        runtime = build_runtime(run_plan)
        try:
            going = runtime.run()
            run_until(going, lambda: runtime.updates >= 10)
            run_until(going, ends_in(3.0))
            runtime.drain_metrics()
            begun, steps, updates = time.monotonic(), runtime.env_steps, runtime.updates
            run_until(going, ends_in(seconds))
            row = runtime.drain_metrics()
            speed = (runtime.env_steps - steps) / (time.monotonic() - begun)
            ray_cluster = runtime.updates - updates
            model = runtime.learner.model
            fragment = run_plan.fragment_shape(layout_of(run_plan, model)).buffer(ENVS_PER_ACTOR)
        finally:
            runtime.close()
    return speed, Costs(
        actor_s=actors * row["time/actors/busy"] / speed,
        driver_s=row["time/hub/busy"] / speed,
        train_s=row["time/learner/busy"] / speed,
        step_bytes=tree.nbytes(fragment) / (ENVS_PER_ACTOR * run_plan.tables[0].fragment),
        weights_bytes=sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()),
        version_steps=speed * seconds / max(1, ray_cluster),
    )


def ends_in(seconds: float) -> Any:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def run_until(going: Iterator[None], done: Any) -> None:
    while not done():
        next(going)


def compare(env_seconds: float, seconds: float, bandwidth: float) -> dict[str, Any]:
    """Costs on one node, the predictions from them, and the measured speeds."""
    found = {nodes: measure(nodes, env_seconds, seconds) for nodes in MEASURED}
    costs = found[1][1]
    predictions = [predict(costs, nodes, ACTORS, bandwidth) for nodes in PREDICTED]
    by_nodes = {one.nodes: one.steps_per_s for one in predictions}
    checks = [
        {
            "nodes": nodes,
            "measured": round(speed, 1),
            "predicted": round(by_nodes[nodes], 1),
            "ratio": round(speed / by_nodes[nodes], 3),
        }
        for nodes, (speed, _) in found.items()
    ]
    return {"costs": asdict(costs), "checks": checks, "predictions": [asdict(one) for one in predictions]}


def plot(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(report), figsize=(6 * len(report), 4), squeeze=False)
    for axis, (name, case) in zip(axes[0], report.items(), strict=True):
        predictions = [Prediction(**one) for one in case["predictions"]]
        nodes = [one.nodes for one in predictions]
        for limit in predictions[0].limits:
            axis.plot(nodes, [one.limits[limit] for one in predictions], ":", label=f"limit: {limit}")
        axis.plot(nodes, [one.steps_per_s for one in predictions], "k-", label="predicted")
        axis.plot([one["nodes"] for one in case["checks"]], [one["measured"] for one in case["checks"]], "ro",
                  label="measured, simulated nodes")  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="nodes", ylabel="env steps/s", title=name)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of each measurement")
    parser.add_argument(
        "--gigabits", type=float, default=10.0, help="network bandwidth of the driver per second, each way"
    )
    parser.add_argument("--plot", type=Path, help="write a PNG")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    from starling.runtime.ray import token

    with tempfile.TemporaryDirectory() as folder:
        os.environ[token.PATH], os.environ[token.MODE] = f"{folder}/token", "token"
        token.ensure_token()
        bandwidth = args.gigabits * 1e9 / 8
        report = {name: compare(env_seconds, args.seconds, bandwidth) for name, env_seconds in CASES.items()}
    for name, case in report.items():
        for check in case["checks"]:
            print(f"{name}: {json.dumps(check)}")
        first = {one["bottleneck"]: one["nodes"] for one in reversed(case["predictions"])}
        limits = [f"{what} from {nodes} nodes on" for what, nodes in reversed(first.items())]
        print(f"{name}: limited by {', by '.join(limits)}")
    if args.plot:
        plot(report, args.plot)
    if args.json:
        said = describe("starling-rl", "ray", "torch")
        settings = {
            "actors_per_node": ACTORS,
            "envs_per_actor": ENVS_PER_ACTOR,
            "seconds": args.seconds,
            "gigabits": args.gigabits,
        }
        print(json.dumps({**said, "settings": settings, "cases": report}))


if __name__ == "__main__":
    main()
