"""Surveys the nodes of a cluster: package versions, resources, and bandwidth."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from starling.errors import UserError

PACKAGES = ("starling-rl", "ray", "torch", "numpy", "gymnasium")
ASK_SECONDS = 60.0
PARCEL = 16 * 2**20
"""Bytes that are sent to measure the bandwidth to a node."""


@dataclass(frozen=True)
class NodeFacts:
    """Properties of one node."""

    address: str
    here: bool  # the node that this process is on
    resources: dict[str, float]
    object_store: int  # bytes
    versions: dict[str, str]
    bytes_per_s: float | None  # from there to here; None: it did not answer

    def lines(self) -> list[str]:
        """Describe the node in two lines."""
        named = ", ".join(f"{name} {found}" for name, found in self.versions.items())
        room = ", ".join(f"{amount:g} {name}" for name, amount in self.resources.items() if _is_asked_for(name))
        speed = "no answer" if self.bytes_per_s is None else f"{self.bytes_per_s / 1e6:,.0f} MB/s"
        way = "within this machine" if self.here else "from there to here"
        return [
            f"node {self.address}{' (this one)' if self.here else ''}: {room}; object store"
            f" {self.object_store / 1e6:,.0f} MB; {speed} {way}",
            f"  {named or 'no answer'}",
        ]


def _is_asked_for(resource: str) -> bool:
    return resource not in ("memory", "object_store_memory") and not resource.startswith("node:")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that must be the same on all nodes."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def survey(nodes: list[dict[str, Any]], measure: bool) -> list[NodeFacts]:
    """Query all nodes concurrently; bandwidths are measured one after the other."""
    here = ray.get_runtime_context().get_node_id()
    asked = [_on(node, versions).remote() for node in nodes]
    facts = []
    for node, answer in zip(nodes, asked, strict=True):
        resources = {name: float(amount) for name, amount in node["Resources"].items()}
        facts.append(
            NodeFacts(
                address=node["NodeManagerAddress"],
                here=node["NodeID"] == here,
                resources=resources,
                object_store=int(resources.get("object_store_memory", 0)),
                versions=_answer(answer) or {},
                bytes_per_s=_bytes_per_s(node) if measure else None,
            )
        )
    return facts


def _on(node: dict[str, Any], function: Any) -> Any:
    """A remote task that runs on this node and reserves no CPU."""
    place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=place)


def _answer(reference: Any) -> Any:
    try:
        return ray.get(reference, timeout=ASK_SECONDS)
    except (RayError, GetTimeoutError):
        return None


def shared_bytes() -> Any:
    return np.random.default_rng(0).integers(0, 256, PARCEL, np.uint8)


def _bytes_per_s(node: dict[str, Any]) -> float | None:
    """Measure the bandwidth from a node to this process; None if it does not answer."""
    made = _on(node, shared_bytes).remote()
    ready, _ = ray.wait([made], timeout=ASK_SECONDS, fetch_local=False)
    started = time.monotonic()
    found = _answer(made) if ready else None
    return None if found is None else len(found) / (time.monotonic() - started)


def mismatch(facts: list[NodeFacts]) -> str | None:
    """Describe the first node whose versions differ from this process's in one line; None if all agree."""
    mine = versions()
    for one in facts:
        if not one.versions:
            return f"node {one.address} does not answer; remove it from the cluster or restart it"
        odd = [name for name in mine if one.versions.get(name) != mine[name]]
        if odd:
            name = odd[0]
            theirs = one.versions.get(name, "missing")
            return (
                f"node {one.address} has {name} {theirs} and this machine {mine[name]}: install the same on all nodes"
            )
    return None


def check_versions(nodes: list[dict[str, Any]]) -> None:
    """Raise `UserError` if a node does not have the versions of this machine."""
    wrong = mismatch(survey(nodes, measure=False))
    if wrong is not None:
        raise UserError(wrong)
