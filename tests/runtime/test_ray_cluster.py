"""Clusters of several nodes, each with its own raylet; drivers run in subprocesses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import ray
from support.driving import TIMEOUT
from support.ray_support import STORE, cluster

from starling.experiment.run_folder.metrics import read_rows

# Once this process has used Ray with a token, it requires one from other clusters.
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]

SMALL = [
    *["impala-cartpole", "runtime=ray", "env.id=toy/identity", "env.num=4", "actors=2", "algo.unroll=5"],
    *["algo.batch=4", "net.torso.hidden=[8]", "stop.return=null", "stop.env_steps=100000000", "log.every=200"],
    *["checkpoint.every=2000", "ray.timeout=5", "eval.every=null"],
]


def starling(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "starling", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def train(address: str, runs: Path, *settings: str) -> subprocess.Popen[str]:
    return starling("train", *SMALL, f"ray.address={address}", "run=a", "--runs", str(runs), *settings)


def end(driver: subprocess.Popen[str]) -> None:
    driver.kill()
    driver.communicate()


def wait_for(found, process: subprocess.Popen[str]) -> None:
    """Wait until `found()` while a driver runs."""
    started = time.monotonic()
    while not found():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() - started < TIMEOUT
        time.sleep(0.1)


def rows(run: Path) -> list[dict]:
    return list(read_rows(run / "metrics.jsonl")) if (run / "metrics.jsonl").exists() else []


def count_in_log(run: Path, text: str) -> int:
    return (run / "log.txt").read_text().count(text) if (run / "log.txt").exists() else 0


@contextmanager
def hanging(node) -> Iterator[None]:
    """Stop everything that runs on a node, and finally kill it: stopped processes would outlive their cluster."""
    raylet = node.all_processes["raylet"][0].process.pid
    stopped = [raylet, *children(raylet)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def children(parent: int) -> list[int]:
    """All descendants of a process."""
    own = [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return own + [pid for child in own for pid in children(child)]


def test_run_survives_losing_a_node_and_resumes_elsewhere_after_losing_the_head(tmp_path):
    run = tmp_path / "a"
    with cluster({"num_cpus": 1}) as nodes:
        second = nodes.add_node(num_cpus=1, object_store_memory=STORE)
        driver = train(nodes.address, tmp_path)
        try:
            wait_for(lambda: len(rows(run)) >= 3, driver)
            assert rows(run)[-1]["ray/nodes"] == 2
            nodes.remove_node(second, allow_graceful=False)
            wait_for(lambda: count_in_log(run, "died ("), driver)
            known = len(rows(run))
            wait_for(lambda: len(rows(run)) > known + 1, driver)  # the other node continues alone
            third = nodes.add_node(num_cpus=1, object_store_memory=STORE)
            wait_for(lambda: rows(run)[-1]["ray/nodes"] == 2, driver)
            lost = rows(run)[-1]["ledger/lost"]
            assert lost <= 2 * 2 * 6, "at most the fragments in flight"
            deaths = count_in_log(run, "died (")
            with hanging(third):
                wait_for(lambda: count_in_log(run, "died (") > deaths, driver)
                known = len(rows(run))
                wait_for(lambda: len(rows(run)) > known + 1, driver)
            wait_for(lambda: list((run / "checkpoints").glob("step-*")), driver)
            nodes.head_node.kill_gcs_server()
            output, _ = driver.communicate(timeout=TIMEOUT)
        finally:
            end(driver)
    assert driver.returncode == 1, output
    assert "does not answer" in output
    assert f"starling resume {run}" in output
    saved = max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))
    here = ray.get_runtime_context().gcs_address
    patient = ["supervision.reduction=60", "ray.timeout=60"]
    other = ["actors=4", "learners=2", *patient, f"stop.env_steps={saved + 400}"]
    resumed = starling("resume", str(run), f"ray.address={here}", *other)
    output, _ = resumed.communicate(timeout=TIMEOUT)
    assert resumed.returncode == 0, output
    assert f"stop.env_steps={saved + 400:,} reached" in output


def test_workers_are_placed_by_the_resources_of_nodes(tmp_path):
    """Actors are placed where their resource is, packed or spread, and the evaluator on the only node with an `eye`."""
    settings = ["ray.actor.resources={simulator: 1}", "ray.evaluator.resources={eye: 1}", "ray.nodes=2"]
    have = [{"eye": 1}, {"simulator": 2}, {"simulator": 2}]
    with cluster(*({"num_cpus": 4, "resources": resources} for resources in have)) as made:
        nodes = made.list_all_nodes()
        for placement, expected in (("pack", [0, 2]), ("spread", [1, 1])):
            where = f"ray.placement={placement}"
            driver = train(made.address, tmp_path / placement, *settings, where, "eval.every=1000000")
            try:
                wait_for(lambda: sum(map(worker_actors_on, nodes)) == 3, driver)
                held = [worker_actors_on(node) for node in nodes]
            finally:
                end(driver)
            assert held[0] == 1, "the evaluator"
            assert sorted(held[1:]) == expected
            limit = time.monotonic() + TIMEOUT
            while sum(map(worker_actors_on, nodes)):  # Ray ends the actors of a killed driver
                assert time.monotonic() < limit
                time.sleep(0.1)


def worker_actors_on(node) -> int:
    """The number of Ray actors on a node that run workers, or are being created to."""
    raylet = node.all_processes["raylet"][0].process.pid
    own = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()  # not grandchildren, which start as forks
    return sum(Path(f"/proc/{pid}/cmdline").read_text().startswith(("ray::Node", "ray::starling ")) for pid in own)


def test_node_with_other_package_versions_is_rejected_and_reported(tmp_path):
    other = tmp_path / "site" / "gymnasium-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: gymnasium\nVersion: 0.0.1\n")
    path = os.pathsep.join([str(other.parent), os.environ.get("PYTHONPATH", "")])
    with cluster({"num_cpus": 2}, {"num_cpus": 2, "env_vars": {"PYTHONPATH": path}}) as nodes:
        check = starling("cluster", "check", *SMALL, f"ray.address={nodes.address}")
        output, _ = check.communicate(timeout=TIMEOUT)
        driver = train(nodes.address, tmp_path)
        refused, _ = driver.communicate(timeout=TIMEOUT)
    assert (check.returncode, driver.returncode) == (2, 2), output + refused
    assert "token authentication: on" in output
    assert len(re.findall(r"node \d+\.\d+\.", output)) == 2 + 1, output
    assert "MB/s" in output
    for text in (output, refused):
        assert "has gymnasium 0.0.1 and this machine" in text.strip().splitlines()[-1]


def test_cluster_without_a_token_is_rejected_unless_allowed(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with cluster({"num_cpus": 2}) as nodes:
        driver = train(nodes.address, tmp_path)
        output, _ = driver.communicate(timeout=TIMEOUT)
        asked = "ray.allow_cluster_without_authentication=true"
        allowed = train(nodes.address, tmp_path, asked, "stop.env_steps=300")
        trained, _ = allowed.communicate(timeout=TIMEOUT)
    assert driver.returncode == 2, output
    assert "asks for no token" in output.strip().splitlines()[-1]
    assert allowed.returncode == 0, trained


def test_address_that_does_not_answer_is_a_one_line_error(tmp_path):
    driver = train("127.0.0.1:9", tmp_path)
    output, _ = driver.communicate(timeout=TIMEOUT)
    assert driver.returncode == 2, output
    assert "ray.address=127.0.0.1:9: nothing answers there" in output.strip().splitlines()[-1]
    assert "Traceback" not in output


def test_ctrl_c_ends_a_local_ray_with_all_its_processes(tmp_path):
    arguments = ["train", *SMALL, "run=a", "--runs", str(tmp_path), "eval.every=1000000", "ray.timeout=60"]
    command = [sys.executable, "-m", "starling", *arguments]
    elsewhere = os.environ | {"RAY_ADDRESS": "127.0.0.1:9"}  # as if this machine belonged to a cluster
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=elsewhere
    ) as driver:
        wait_for(lambda: len(rows(tmp_path / "a")) >= 2, driver)
        os.killpg(driver.pid, signal.SIGINT)
        output, _ = driver.communicate(timeout=TIMEOUT)
    assert driver.returncode == 0, output
    assert "Traceback" not in output
    assert "died" not in output
    assert list((tmp_path / "a" / "checkpoints").glob("step-*"))
    end = time.monotonic() + TIMEOUT
    while left := in_session(driver.pid):
        assert time.monotonic() < end, left
        time.sleep(0.1)


def in_session(leader: int) -> list[str]:
    """The processes that still run in a session."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(Path(f"/proc/{entry}/cmdline").read_text())
        except OSError:
            continue
    return found
