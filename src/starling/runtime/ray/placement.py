"""Placement of a run's parts: their resources, a check that they fit, and a Ray placement group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from starling.config.cluster import PlaceConfig
from starling.errors import UserError

LEAST_CPU = 0.001
"""CPUs for a part that needs no resources, since Ray refuses empty bundles."""
RESERVE_SECONDS = 30.0


@dataclass(frozen=True)
class Need:
    """Resources that one part needs on its node."""

    name: str
    resources: dict[str, float]

    def __str__(self) -> str:
        return f"{self.name} needs {_words(self.resources)}"


def need(name: str, *parts: tuple[PlaceConfig, int]) -> Need:
    """Sum the resources of several parts, each given with its count."""
    asks = [{"CPU": place.cpus * n, "GPU": place.gpus * n, **_times(place.resources, n)} for place, n in parts]
    asked = {resource: amount for resource, amount in _sum(asks).items() if amount}
    return Need(name, asked or {"CPU": LEAST_CPU})


def _times(resources: Mapping[str, float], count: int) -> dict[str, float]:
    return {resource: amount * count for resource, amount in resources.items()}


def _sum(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0.0) + amount
    return total


def check(needs: Sequence[Need], nodes: Sequence[Mapping[str, float]]) -> None:
    """Raise `UserError` if the parts would not fit even into an empty cluster; `nodes` are resources per node."""
    for one in needs:
        if not any(_fits(one.resources, node) for node in nodes):
            raise UserError(f"{one}, and no node of the cluster has that much: {_lacks(one.resources, nodes)}")
    left = [dict(node) for node in nodes]
    for one in sorted(needs, key=lambda need: -sum(need.resources.values())):
        room = next((node for node in left if _fits(one.resources, node)), None)
        if room is None:
            raise UserError(_too_much(needs, nodes, one))
        for resource, amount in one.resources.items():
            room[resource] -= amount


def _fits(wanted: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(resource, 0.0) >= amount for resource, amount in wanted.items())


def _lacks(wanted: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    most = {resource: max((node.get(resource, 0.0) for node in nodes), default=0.0) for resource in wanted}
    short = {resource: amount for resource, amount in wanted.items() if most[resource] < amount}
    lacking = [f"{most[resource]:g} of {amount:g} {resource}" for resource, amount in (short or wanted).items()]
    return f"the most on one is {', '.join(lacking)}"


def _too_much(needs: Sequence[Need], nodes: Sequence[Mapping[str, float]], last: Need) -> str:
    wanted = _sum(one.resources for one in needs)
    there = {resource: sum(node.get(resource, 0.0) for node in nodes) for resource in wanted}
    short = {name: amount - there[name] for name, amount in wanted.items() if amount > there[name]}
    missing = f"{_words(short)} missing" if short else f"{last.name} fits on no node beside the others"
    return (
        f"this run needs {_words(wanted)} in all and the cluster has {_words(there)} on {len(nodes)} nodes: {missing};"
        " lower actors or what ray.actor asks for, or add nodes"
    )


def _words(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


@dataclass(frozen=True)
class Place:
    """The bundle of one part in the placement group."""

    need: Need
    group: PlacementGroup
    index: int

    def __str__(self) -> str:
        return str(self.need)

    def is_kept(self) -> bool:
        """Return True if the bundle is currently placed on a node."""
        return bool(placement_group_table(self.group)["bundles_to_node_id"].get(self.index))

    def options(self, start: int) -> dict[str, Any]:
        """Options for a Ray actor in this bundle, the `start`-th of this part; its name is unique in the cluster."""
        asked = dict(self.need.resources)
        again = "" if start == 1 else f", start {start}"
        return {
            "name": f"starling {self.group.id.hex()[:8]}: {self.need.name}{again}",
            "num_cpus": asked.pop("CPU", 0.0),
            "num_gpus": asked.pop("GPU", 0.0),
            "resources": asked,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, self.index),
        }


class Reservation:
    """Reserves resources for all parts of a run; Ray reschedules the bundle of a lost node once resources are free."""

    def __init__(self, needs: Sequence[Need], strategy: str) -> None:
        self._group = placement_group([need.resources for need in needs], strategy=strategy.upper())
        self.places = [Place(one, self._group, index) for index, one in enumerate(needs)]
        if not self._group.wait(RESERVE_SECONDS):
            free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
            wanted = {name: free.get(name, 0.0) for need in needs for name in need.resources}
            self.release()
            raise UserError(
                f"the cluster has no room for this run now: {'; '.join(map(str, needs))}; free is {_words(wanted)}"
            )

    def release(self) -> None:
        ray.util.remove_placement_group(self._group)
