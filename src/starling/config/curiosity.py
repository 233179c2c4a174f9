"""Settings of intrinsic rewards; each is a separate reward stream."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from starling.config.limits import Capacity, Items, Magnitude, Steps, Weight, Width
from starling.config.parts import Arguments, OptimizerConfig, Part, TorsoConfig


class CuriosityConfig(Part):
    """Base class of the settings of an intrinsic reward."""

    model_config = ConfigDict(populate_by_name=True)
    kind: str = Field(description="rnd, icm, episodic, novelty, or package.module:Class")
    name: str | None = Field(None, pattern=r"^\w+$", description="name of the reward stream; null: its kind")
    weight: Weight = Field(1.0, ge=0, description="weight of the stream in the policy's objective")
    discount: float = Field(0.99, ge=0, lt=1, description="gamma of the stream")
    lambda_: float = Field(0.95, ge=0, le=1, alias="lambda", description="lambda of the stream (PPO, IMPALA, IMPACT)")
    episodic: bool = Field(False, description="whether the stream's return ends with the episode")
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(name="Adam", args={"lr": 1e-4}), description="optimizer of its networks"
    )

    @property
    def stream(self) -> str:
        """The name of its reward stream."""
        return self.name or self.kind.rpartition(":")[2].lower()


class RNDConfig(CuriosityConfig):
    """Random network distillation (1810.12894)."""

    kind: Literal["rnd"] = Field("rnd", description="random network distillation")
    features: Width = Field(64, ge=1, description="number of outputs of the random network")
    torso: TorsoConfig = Field(default_factory=TorsoConfig, description="of the predictor and the random network")
    share: float = Field(1.0, gt=0, le=1, description="share of steps that the predictor learns from")
    clip: Magnitude = Field(5.0, gt=0, description="normalized observations are clipped to +- this")
    warm_up: Steps = Field(500, ge=0, description="observations seen before the first reward is given")


class ICMConfig(CuriosityConfig):
    """Intrinsic curiosity module (1705.05363)."""

    kind: Literal["icm"] = Field("icm", description="intrinsic curiosity module")
    torso: TorsoConfig = Field(default_factory=TorsoConfig, description="of the features, trained by the inverse model")
    hidden: Width = Field(256, ge=1, description="hidden width of the forward and inverse models")
    beta: float = Field(0.2, ge=0, le=1, description="weight of the forward model's loss against the inverse model's")


class EpisodicConfig(CuriosityConfig):
    """Novelty of an observation within its episode (2002.06038, section 2)."""

    kind: Literal["episodic"] = Field("episodic", description="episodic novelty")
    episodic: bool = Field(True, description="whether the stream's return ends with the episode")
    torso: TorsoConfig = Field(default_factory=TorsoConfig, description="of the embedding, trained by an inverse model")
    features: Width = Field(32, ge=1, description="size of the embedding")
    hidden: Width = Field(128, ge=1, description="hidden width of the inverse model")
    capacity: Capacity = Field(30_000, ge=1, description="embeddings remembered per env and episode")
    neighbours: Items = Field(10, ge=1, description="nearest neighbors that count (k)")
    kernel: Magnitude = Field(1e-4, gt=0, description="epsilon of the kernel")
    cluster: Magnitude = Field(0.008, ge=0, description="squared distances below this fraction of their mean are 0")
    constant: Magnitude = Field(1e-3, gt=0, description="added to the similarity")
    most: Magnitude = Field(8.0, gt=0, description="similarity above which the reward is 0")

    @model_validator(mode="after")
    def _neighbors_are_remembered(self) -> EpisodicConfig:
        if self.capacity < self.neighbours:
            raise ValueError(f"capacity={self.capacity} is less than neighbours={self.neighbours}: raise it")
        return self


def check_part_of_novelty(section: str, part: CuriosityConfig, unused: AbstractSet[str]) -> None:
    """Raise ValueError if `part`, one of two that make up one reward, sets what only a stream of its own has."""
    for key in sorted(unused & type(part).model_fields.keys()):
        if getattr(part, key) != type(part).model_fields[key].default:
            raise ValueError(f"{section}.{key.rstrip('_')} has no effect here: novelty is one reward; leave it out")


class NoveltyConfig(CuriosityConfig):
    """NGU's novelty (2002.06038, eq. 1) as one reward: episodic novelty times lifelong novelty."""

    kind: Literal["novelty"] = Field("novelty", description="episodic novelty times lifelong novelty (RND)")
    episodic: bool = Field(True, description="whether the stream's return ends with the episode")
    lifelong: RNDConfig = Field(default_factory=RNDConfig, description="lifelong novelty, which modulates the other")
    within: EpisodicConfig = Field(default_factory=EpisodicConfig, description="novelty within an episode")
    limit: Magnitude = Field(5.0, ge=1, description="largest modulation, L")

    @model_validator(mode="after")
    def _parts_are_one_reward(self) -> NoveltyConfig:
        unused = CuriosityConfig.model_fields.keys() - {"kind"}
        for section, part in (("lifelong", self.lifelong), ("within", self.within)):
            check_part_of_novelty(section, part, unused)
        return self


class OwnCuriosityConfig(CuriosityConfig):
    """Your own intrinsic reward."""

    kind: str = Field(pattern=":", description="package.module:Class")
    args: Arguments = Field(default_factory=dict, description="arguments of your class")


def _which(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "own" if isinstance(kind, str) and ":" in kind else str(kind)


AnyCuriosity = Annotated[
    Annotated[RNDConfig, Tag("rnd")]
    | Annotated[ICMConfig, Tag("icm")]
    | Annotated[EpisodicConfig, Tag("episodic")]
    | Annotated[NoveltyConfig, Tag("novelty")]
    | Annotated[OwnCuriosityConfig, Tag("own")],
    Discriminator(
        _which,
        custom_error_type="unknown_kind",
        custom_error_message="needs a kind: rnd, icm, episodic, novelty, or package.module:Class of your own",
    ),
]
