"""The recipe for two machines, run in two connected network namespaces, where that is allowed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from starling.experiment.run_folder.metrics import read_rows
from starling.runtime.ray.token import MODE, PATH

RECIPE = Path(__file__).parents[2] / "deploy" / "two-nodes.sh"
FIRST, SECOND = "10.203.17.1", "10.203.17.2"
SMALL = [
    *[
        "impala-cartpole",
        "runtime=ray",
        "env.id=toy/identity",
        "env.num=4",
        "actors=2",
        "ray.nodes=2",
        "algo.unroll=16",
    ],
    *["algo.batch=4", "algo.optimizer.args.lr=0.01", "algo.discount=0.5", "stop={env_steps: 6000}", "log.every=200"],
    *["learners=2", "ray.learner={cpus: 0.1}", "ray.actor.cpus=0.5", "ray.timeout=60", "eval.every=null"],
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def end_all_in(machine: str) -> None:
    """End everything that still runs there; `ray stop` would end every Ray on this computer."""
    found = subprocess.run(["ip", "netns", "pids", machine], check=True, capture_output=True, text=True).stdout
    for pid in map(int, found.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """Two namespaces with one address each, which can reach only each other."""
    first, second = (f"starling-{os.getpid()}-{i}" for i in (1, 2))
    cable = [f"st{os.getpid() % 10_000}-{i}" for i in (1, 2)]
    with ExitStack() as stack:
        try:
            for name in (first, second):
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
                stack.callback(shutil.rmtree, f"/tmp/{name}", ignore_errors=True)
                stack.callback(end_all_in, name)
            ip("link", "add", cable[0], "netns", first, "type", "veth", "peer", cable[1], "netns", second)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        for name, end, address in ((first, cable[0], FIRST), (second, cable[1], SECOND)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield first, second


@pytest.mark.ray
def test_recipe_for_two_machines_gives_a_cluster_that_learns(tmp_path):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    common = os.environ | {PATH: str(tmp_path / "token"), MODE: "token", "PATH": path}

    def within(machine: str, address: str, *command: str) -> str:
        """Run a command on a machine, with a separate folder for Ray's files."""
        there = common | {"ADDRESS": address, "RAY_TMPDIR": f"/tmp/{machine}", "PYTHONPATH": ":".join(sys.path)}
        whole = ["ip", "netns", "exec", machine, *command]
        done = subprocess.run(whole, env=there, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with two_machines() as (first, second):
        within(first, FIRST, "bash", str(RECIPE), "head")
        within(second, SECOND, "bash", str(RECIPE), "join", f"{FIRST}:6379")
        run = [*SMALL, f"ray.address={FIRST}:6379"]
        checked = within(first, FIRST, sys.executable, "-m", "starling", "cluster", "check", *run)
        within(first, FIRST, sys.executable, "-m", "starling", "train", *run, "run=a", "--runs", str(tmp_path))
    assert f"node {FIRST} (this one)" in checked
    assert f"node {SECOND}:" in checked
    assert "token authentication: on" in checked
    last = list(read_rows(tmp_path / "a" / "metrics.jsonl"))[-1]
    assert last["ray/nodes"] == 2
    assert last["env_steps"] >= 6000
    assert last["return"] > 8  # 4 by chance, 16 at best
