"""The `ray` section of the configuration: the cluster, the placement of parts, and timeouts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from starling.config.limits import Processes, Resources, Seconds
from starling.config.parts import Part


class PlaceConfig(Part):
    """What one of a role asks of the node that it is placed on."""

    cpus: Resources = Field(1.0, ge=0, description="CPUs that are kept free for it")
    gpus: Resources = Field(0.0, ge=0, description="GPUs that are kept free for it")
    resources: dict[str, Resources] = Field(
        default_factory=dict, description="custom resources of the node, as in ray start --resources"
    )


class RayConfig(Part):
    """Where the parts of a run with runtime=ray are, and what happens to lost ones."""

    address: str | None = Field(
        None,
        min_length=1,
        description="auto (the cluster this machine is part of), HOST:PORT or ray://HOST:PORT; null: a Ray of its own",
    )
    allow_cluster_without_authentication: bool = Field(
        False, description="join a cluster in which whoever reaches its ports may run code as you"
    )
    nodes: Processes | None = Field(
        None, ge=1, description="Ray actors that share the env loops; null: one per machine of the cluster"
    )
    placement: Literal["spread", "pack"] = Field(
        "spread", description="spread parts over nodes, or pack them on as few as can be"
    )
    shards: Processes = Field(
        0, ge=0, description="Ray actors that hold the replay, an equal part each; 0: it is beside the learner"
    )
    actor: PlaceConfig = Field(default_factory=PlaceConfig, description="place of an env loop with its policy")
    inference: PlaceConfig = Field(
        default_factory=PlaceConfig, description="place of a node's inference server, where inference=central"
    )
    evaluator: PlaceConfig = Field(default_factory=PlaceConfig, description="place of the evaluator")
    learner: PlaceConfig | None = Field(
        None, description="place of one of several learners; null: all are processes of the driver's machine"
    )
    shard: PlaceConfig = Field(default_factory=PlaceConfig, description="place of a part of the replay")
    timeout: Seconds = Field(
        10.0, gt=0, description="seconds without an answer after which a Ray actor, or the head, counts as lost"
    )
