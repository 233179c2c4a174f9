"""The connection to a Ray cluster: start or join one that requires a token, monitor its head, and disconnect."""

from __future__ import annotations

import atexit
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray._private import ray_constants
from ray.exceptions import RayError
from ray.job_config import JobConfig

from starling.config.cluster import RayConfig
from starling.errors import UserError
from starling.hardware import cores
from starling.process_exit import leave_at_once
from starling.runtime.current_folder import is_on_path, kept_off_path
from starling.runtime.distributed_learners import LOOPBACK
from starling.runtime.leftovers import remove_folder_later
from starling.runtime.ray.placement import Need
from starling.runtime.ray.token import MODE, PATH, TOKEN, check_token_file, ensure_token

CONNECT_SECONDS = 5.0
STARTS = 3
"""Attempts to start a Ray of the run's own; each takes half a minute if the machine is too busy."""
WATCH_SECONDS = 1.0
KNOCK_SECONDS = 60.0
DOOR_IS_OPEN, DOOR_IS_CLOSED = "open to all", "asks for a token"
KNOCK = f"""
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"x", b"x")
except AuthenticationError:
    print({DOOR_IS_CLOSED!r})
else:
    print({DOOR_IS_OPEN!r})
"""
"""Program that connects to a cluster without a token."""


class UndecidedError(Exception):
    """It could not be determined whether a cluster requires a token."""


class Cluster:
    """This process's connection to Ray; `close` leaves a connection open that existed before."""

    def __init__(self, settings: RayConfig, needs: Sequence[Need], object_store: int) -> None:
        self._mine = not ray.is_initialized()
        self._files: TemporaryDirectory[str] | None = None
        if self._mine and settings.address is None:
            self._files = _private_folder()
            remove_folder_later(self._files.name)
            try:
                _start(self._files.name, needs, object_store)
            except BaseException:
                self._files.cleanup()
                raise
        elif self._mine and settings.address is not None:
            _join(settings.address)
        self.own = self._files is not None
        self.head = _head(settings)
        self.lost = False
        self.node_count = 0
        self._counting: threading.Thread | None = None
        self._closing = threading.Event()
        danger = None if self.own else self._danger()
        self.open_to_all = danger is not None  # or not known to require a token
        if danger is not None and not settings.allow_cluster_without_authentication:
            self.close()
            raise UserError(danger)

    def _danger(self) -> str | None:
        """Return an error message unless the cluster is known to require a token."""
        try:
            return _open_door(self.head) if is_open(_gcs()) else None
        except UndecidedError as error:
            return _undecided(self.head, str(error))

    def nodes(self) -> list[dict[str, Any]]:
        """Ray's descriptions of the nodes that are alive."""
        return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]

    def watch(self, timeout: float, lost: Any) -> None:
        """Call `lost` once the head has not answered for so many seconds; keep `node_count` up to date until then."""
        threading.Thread(target=self._watch, args=(timeout, lost), name="head watch", daemon=True).start()
        self._counting = threading.Thread(target=self._count, name="node count", daemon=True)
        self._counting.start()

    def _count(self) -> None:
        """Runs in its own thread, since a call to a lost head blocks until Ray aborts this process."""
        while not self._closing.is_set() and not self.lost:
            self.node_count = len(self.nodes())
            self._closing.wait(WATCH_SECONDS)

    def _watch(self, timeout: float, lost: Any) -> None:
        misses = 0.0
        while not self._closing.wait(WATCH_SECONDS):
            misses = 0.0 if answers(self.head, WATCH_SECONDS) else misses + WATCH_SECONDS
            if misses >= timeout:
                self.lost = True
                lost(self.head)
                return

    def close(self) -> None:
        self._closing.set()
        if self.lost:
            atexit.unregister(ray.shutdown)  # which would block on the head until Ray aborts this process
            leave_at_once()  # Ray's threads may crash at shutdown
        else:
            if self._counting is not None:
                self._counting.join(CONNECT_SECONDS)
            if self._mine:
                ray.shutdown()
        if self._files is not None:
            self._files.cleanup()


def _private_folder() -> TemporaryDirectory[str]:
    """Make a private folder for Ray's files and sockets, which are world-writable in /tmp/ray.

    Its name is short, since the path of a socket has at most 107 characters.
    """
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp")
    folder.mkdir(parents=True, exist_ok=True)
    return TemporaryDirectory(prefix="starling-ray-", dir=folder, ignore_cleanup_errors=True)


def _start(folder: str, needs: Sequence[Need], object_store: int) -> None:
    """Start a local Ray for this run: on the loopback interface, with a token and as many CPUs as the run needs."""
    ensure_token()
    cpus = max(math.ceil(sum(need.resources.get("CPU", 0.0) for need in needs)) + 1, cores())
    for left in reversed(range(STARTS)):
        try:
            _start_once(folder, cpus, object_store)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            _end_processes_of(folder)
            if not left:
                raise UserError(
                    f"Ray did not start in {STARTS} attempts of 30 s: this machine is too busy; try again"
                ) from error
        else:
            return


def _start_once(folder: str, cpus: int, object_store: int) -> None:
    with _on_loopback(), kept_off_path(), _temporary_files_in(folder):
        ray.init(  # "local": even if another one is running
            "local",
            num_cpus=cpus,
            object_store_memory=object_store,
            _node_ip_address=LOOPBACK,
            _temp_dir=f"{folder}/ray",  # world-accessible, unlike the folder around it
            _system_config={"worker_niceness": 0},  # by default 15, which would let the learner starve Ray's workers
            job_config=_job(),
            **_QUIET,
        )


def _end_processes_of(folder: str) -> None:
    """Kill what a failed start of Ray has left: children of this process with that folder among their arguments."""
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            with suppress(OSError):
                if folder.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)


@contextmanager
def _temporary_files_in(folder: str) -> Iterator[None]:
    """Have processes that are started in this context, and those that they start, use this temporary folder."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Make a Ray that is started in this context listen on 127.0.0.1 only.

    Ray's processes do so if that is their node's address, and listen on every interface otherwise. `ray.init` replaces
    127.0.0.1 by an address that other machines can reach, unless this private constant disables clusters, as it does
    on macOS. Ray 2.60 has no public option for it once Ray is imported.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _job() -> JobConfig:
    """A job whose workers do not import from the current folder, unless this process does.

    Ray (2.60) puts that folder first on their path for every job except a client's, and has no public option for it.
    """
    return JobConfig(_client_job=not is_on_path())


def _join(address: str) -> None:
    check_token_file()
    # The server configures the job of a client, whose path does not have this folder.
    job: dict[str, Any] = {} if address.startswith("ray://") else {"job_config": _job()}
    if ":" in address and not answers(_endpoint(address), CONNECT_SECONDS):
        raise UserError(f"ray.address={address}: nothing answers there; is the cluster up, and its port open?")
    try:
        ray.init(address=address, **_QUIET, **job)
    except ConnectionError as error:
        raise UserError(f"ray.address={address}: {_first_line(error)}; start one with: ray start --head") from error
    except RayError as error:
        raise UserError(f"ray.address={address}: {_first_line(error)}") from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        raise UserError(f"ray.address={address}: {' '.join(str(error).split())}") from error


_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _endpoint(address: str) -> str:
    return address.removeprefix("ray://").partition("/")[0]


def _gcs() -> str:
    return str(ray.get_runtime_context().gcs_address)


def _head(settings: RayConfig) -> str:
    """HOST:PORT at which this process connects to the cluster."""
    return _endpoint(settings.address) if settings.address and settings.address.startswith("ray://") else _gcs()


def address_here() -> str:
    """The address at which other nodes reach this one."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def answers(endpoint: str, timeout: float) -> bool:
    """Return True if HOST:PORT accepts connections."""
    node, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((node.strip("[]"), int(port)), timeout):
            return True
    except (OSError, ValueError):
        return False


@cache
def is_open(gcs: str) -> bool:
    """Return True if a cluster accepts connections without a token, by trying one in a subprocess.

    Raises:
        UndecidedError: It neither accepted the connection nor required a token: no answer, or another failure.
    """
    stranger = {name: value for name, value in os.environ.items() if name not in (TOKEN, PATH)} | {MODE: "disabled"}
    command = [sys.executable, "-P", "-c", KNOCK, gcs]
    try:
        trial = subprocess.run(
            command, env=stranger, capture_output=True, text=True, timeout=KNOCK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UndecidedError(f"no answer within {KNOCK_SECONDS:g} s") from error
    except OSError as error:
        raise UndecidedError(str(error)) from error
    answer = trial.stdout.strip()
    if answer not in (DOOR_IS_OPEN, DOOR_IS_CLOSED):
        lines = trial.stderr.strip().splitlines()
        raise UndecidedError(lines[-1] if lines else f"the trial ended with code {trial.returncode}")
    return answer == DOOR_IS_OPEN


def _undecided(head: str, why: str) -> str:
    return (
        f"could not find out whether the Ray cluster at {head} asks for a token ({why}); try again, or set"
        " ray.allow_cluster_without_authentication=true"
    )


def _open_door(head: str) -> str:
    return (
        f"the Ray cluster at {head} asks for no token: whoever reaches its ports may run code as you. Start its nodes"
        " with RAY_AUTH_MODE=token, or set ray.allow_cluster_without_authentication=true"
    )
