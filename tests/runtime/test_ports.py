"""Runs on one machine have no sockets that other machines can reach; read from /proc, for real processes."""

import ipaddress
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from support.driving import TIMEOUT, run_until, stepped_run
from support.listening_sockets import exposed_addresses, listening_addresses, socket_files, tree

from starling.config.cluster import RayConfig
from starling.errors import UserError
from starling.experiment.run_folder.metrics import read_rows

SMALL = ["env.id=toy/identity", "env.num=4", "actors=2", "net.torso.hidden=[8]", "stop.return=null"]


def test_listening_addresses_are_found():
    """Checks the helper functions: all interfaces, loopback, and loopback mapped to IPv6."""
    places = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")]
    opened = []
    try:
        for family, address in places:
            listener = socket.socket(family)
            opened.append(listener)
            listener.bind((address, 0))
            listener.listen()
        ports = [listener.getsockname()[1] for listener in opened]
        found = {port: str(address) for address, port in listening_addresses([os.getpid()])}
        assert [found[port] for port in ports] == ["0.0.0.0", "127.0.0.1", "127.0.0.1"]
        assert f"0.0.0.0:{ports[0]}" in exposed_addresses([os.getpid()])
        assert not any(str(port) in line for port in ports[1:] for line in exposed_addresses([os.getpid()]))
    finally:
        for listener in opened:
            listener.close()


@pytest.mark.parametrize("learners", [1, 2])
def test_with_processes_only_learners_listen_and_only_on_loopback(learners):
    before = listening_addresses([*tree(os.getpid())])  # an earlier test in this process may have started Ray
    with stepped_run("impala-cartpole", *SMALL, f"learners={learners}", "algo.unroll=5", "algo.batch=4") as runtime:
        run_until(runtime, lambda: runtime.updates >= 3)
        found = listening_addresses([*tree(os.getpid())]) - before
    assert {address for address, _ in found} == ({ipaddress.IPv4Address("127.0.0.1")} if learners > 1 else set())
    assert len(found) == (2 if learners > 1 else 0), "each rank listens once, for the other"


def test_foreign_connections_do_not_disturb_connected_learners():
    """Gloo does not authenticate connections, but foreign data is not taken for a gradient."""
    before = listening_addresses([*tree(os.getpid())])  # an earlier test in this process may have started Ray
    with stepped_run("impala-cartpole", *SMALL, "learners=2", "algo.unroll=5", "algo.batch=4") as runtime:
        run_until(runtime, lambda: runtime.updates >= 3)
        noise = [b"", b"x", os.urandom(8), os.urandom(1 << 16), *(struct.pack("<q", n) + b"x" * 64 for n in range(8))]
        with ExitStack() as strangers:
            for _, port in listening_addresses([*tree(os.getpid())]) - before:
                for data in noise:
                    stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
                    stranger.sendall(data)
            updates = runtime.updates
            assert run_until(runtime, lambda: runtime.updates >= updates + 20) == []
        assert run_until(runtime, lambda: runtime.updates >= updates + 40) == [], "nor when they disconnect"


@pytest.mark.ray
def test_local_ray_with_learners_listens_only_on_loopback(tmp_path, ray_token):
    arguments = [
        "train",
        "impala-cartpole",
        *SMALL,
        "runtime=ray",
        "learners=2",
        "ray.learner.cpus=1",
        "eval.every=null",
    ]
    more = ["algo.unroll=5", "algo.batch=4", "stop.env_steps=100000000", "log.every=200", "ray.timeout=60"]
    command = [sys.executable, "-m", "starling", *arguments, *more, "run=a", "--runs", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as driver:
        end = time.monotonic() + TIMEOUT
        while not updates(tmp_path / "a"):
            assert driver.poll() is None, driver.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.2)
        pids = [*tree(driver.pid)]
        found, open_to_others, sockets = listening_addresses(pids), exposed_addresses(pids), socket_files(pids)
        exposed = [path for path in sockets if not is_private(path)]
        driver.send_signal(signal.SIGINT)
        output, _ = driver.communicate(timeout=TIMEOUT)
    assert driver.returncode == 0, output
    assert len(found) >= 7, "the head, the raylet, the driver, two nodes, two ranks"
    assert open_to_others == []
    assert any(path.name == "raylet" for path in sockets)
    assert exposed == [], "another user could put a socket of its own there"
    assert not [path for path in sockets if path.name == "raylet" and path.exists()], "its files are gone with it"


def is_private(path):
    """Return whether a folder above a file denies access to other users."""
    return any(folder.exists() and not folder.stat().st_mode & 0o077 for folder in path.parents)


def updates(run):
    """Updates in the newest metrics row."""
    file = run / "metrics.jsonl"
    rows = read_rows(file) if file.exists() else []
    return rows[-1].get("updates", 0) if rows else 0


def with_probe_timeout(monkeypatch, seconds):
    """Set the timeout of the check whether a cluster is open, and clear its cache."""
    from starling.runtime.ray import cluster

    monkeypatch.setattr(cluster, "KNOCK_SECONDS", seconds)
    cluster.is_open.cache_clear()
    return cluster


def test_cluster_that_does_not_answer_is_not_considered_closed(monkeypatch):
    cluster = with_probe_timeout(monkeypatch, 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(cluster.UndecidedError, match="no answer within 3 s"):
            cluster.is_open(address)
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(cluster.UndecidedError, match="ended with code 1"):
            cluster.is_open(address)
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(cluster.UndecidedError, match="No such file"):
            cluster.is_open(address)


@pytest.mark.ray
def test_failed_check_rejects_a_cluster_unless_allowed(local_ray, monkeypatch):
    cluster = with_probe_timeout(monkeypatch, 60.0)
    assert not cluster.Cluster(RayConfig(), [], 0).open_to_all, "it asks for a token"
    cluster.is_open.cache_clear()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match=r"could not find out .* \(the trial ended with code 1\)") as error:
        cluster.Cluster(RayConfig(), [], 0)
    assert "\n" not in str(error.value)
    allowed = cluster.Cluster(RayConfig(allow_cluster_without_authentication=True), [], 0)
    assert allowed.open_to_all, "as far as is known"
