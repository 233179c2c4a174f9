"""Who is placed where: what every part needs of a node, whether the cluster has it, and a group that keeps it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from starling.config.cluster import PlaceConfig
from starling.errors import UserError

LEAST_CPU = 0.001
"""Of a part that asks for nothing: a bundle of Ray's must ask for something."""
RESERVE_SECONDS = 30.0


@dataclass(frozen=True)
class Need:
    """What one part asks of the node it is placed on."""

    name: str
    resources: dict[str, float]

    def __str__(self) -> str:
        return f"{self.name} needs {_words(self.resources)}"


def need(name: str, *parts: tuple[PlaceConfig, int]) -> Need:
    """The need of something made of so many of each part."""
    total: Counter[str] = Counter()
    for place, count in parts:
        for resource, amount in {"CPU": place.cpus, "GPU": place.gpus, **place.resources}.items():
            total[resource] += amount * count  # type: ignore[assignment]
    asked = {resource: amount for resource, amount in total.items() if amount}
    return Need(name, asked or {"CPU": LEAST_CPU})


def check(needs: Sequence[Need], nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse what the cluster could not hold were it empty; says what is missing. `nodes` are their resources."""
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
    wanted: Counter[str] = Counter()
    for one in needs:
        wanted.update(one.resources)  # type: ignore[arg-type]
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
    """One part's place in the cluster."""

    need: Need
    group: PlacementGroup
    index: int

    def __str__(self) -> str:
        return str(self.need)

    def options(self) -> dict[str, Any]:
        """How a Ray actor is told to go there."""
        asked = dict(self.need.resources)
        return {
            "num_cpus": asked.pop("CPU", 0.0),
            "num_gpus": asked.pop("GPU", 0.0),
            "resources": asked,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, self.index),
        }


class Reservation:
    """Places for all parts of a run; Ray gives a part whose node is lost another place as soon as there is one."""

    def __init__(self, needs: Sequence[Need], strategy: str) -> None:
        self._group = placement_group([need.resources for need in needs], strategy=strategy.upper())
        self.places = [Place(one, self._group, index) for index, one in enumerate(needs)]
        if not self._group.wait(RESERVE_SECONDS):
            free = _words(
                {name: math.floor(amount) for name, amount in ray.available_resources().items() if amount < 1e6}
            )
            self.release()
            raise UserError(f"the cluster has no room for this run now: {'; '.join(map(str, needs))}; free is {free}")

    def release(self) -> None:
        ray.util.remove_placement_group(self._group)
