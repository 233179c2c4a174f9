"""The `device` section of the configuration: where a run learns and acts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, SerializerFunctionWrapHandler, model_serializer, model_validator

from starling.config.parts import Part


class DeviceConfig(Part):
    """Devices of a run. One value instead of a section, as in `device=cuda:0`, is that of the learner."""

    learner: str = Field("auto", description="of the learner: auto (cuda if available), cpu, cuda, cuda:1")
    actors: str | None = Field(
        None,
        description="of the policies beside the envs, and of the evaluator; null: cpu, or on a cluster cuda if"
        " ray.actor.gpus or ray.evaluator.gpus reserve any; a run with runtime=inline acts where it learns",
    )
    inference: str | None = Field(
        None,
        description="of the server, with inference=central; null: that of its learner, or on a cluster cpu, and cuda if"
        " ray.inference.gpus reserves any",
    )
    backend: Literal["auto", "gloo"] = Field(
        "auto",
        description="how several learners share gradients; auto: nccl between GPUs, of which each learner needs its"
        " own, else gloo; gloo: also lets them share a GPU",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _one_value(cls, value: Any, handler: ModelWrapValidatorHandler[DeviceConfig]) -> DeviceConfig:
        return handler({"learner": value} if isinstance(value, str) else value)

    @model_serializer(mode="wrap")
    def _as_one_value(self, handler: SerializerFunctionWrapHandler) -> Any:
        """One value if that says it all."""
        return self.learner if self == DeviceConfig(learner=self.learner) else handler(self)
