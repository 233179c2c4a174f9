"""The `ray` section of the configuration: the cluster, the placement of parts, and timeouts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from starling.config.limits import Processes, Resources, Seconds
from starling.config.parts import Part


class PlaceConfig(Part):
    """Resources that one worker needs on its node."""

    cpus: Resources = Field(1.0, ge=0, description="CPUs reserved for it")
    gpus: Resources = Field(0.0, ge=0, description="GPUs reserved for it")
    resources: dict[str, Resources] = Field(
        default_factory=dict, description="custom resources of the node, as in ray start --resources"
    )


class RayConfig(Part):
    """Placement of the workers of a run with runtime=ray, and timeouts for lost ones."""

    address: str | None = Field(
        None,
        min_length=1,
        description="auto (the cluster this machine is part of), HOST:PORT or ray://HOST:PORT; null: start a local one",
    )
    allow_cluster_without_authentication: bool = Field(
        False, description="join a cluster in which anybody who reaches its ports may run code as you"
    )
    nodes: Processes | None = Field(
        None, ge=1, description="Ray actors that share the env loops; null: one per machine of the cluster"
    )
    placement: Literal["spread", "pack"] = Field(
        "spread", description="spread workers over nodes, or pack them on as few as possible"
    )
    shards: Processes = Field(
        0, ge=0, description="Ray actors that hold equal shares of the replay; 0: it is beside the learner"
    )
    actor: PlaceConfig = Field(default_factory=PlaceConfig, description="resources of one env loop with its policy")
    inference: PlaceConfig = Field(
        default_factory=PlaceConfig, description="resources of a node's inference server, with inference=central"
    )
    evaluator: PlaceConfig = Field(default_factory=PlaceConfig, description="resources of the evaluator")
    learner: PlaceConfig | None = Field(
        None, description="resources of one of several learners; null: all are processes of the driver's machine"
    )
    shard: PlaceConfig = Field(default_factory=PlaceConfig, description="resources of one shard of the replay")
    timeout: Seconds = Field(
        10.0, gt=0, description="seconds without an answer after which a Ray actor, or the head, counts as lost"
    )
