"""The configuration of a run; does not import torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from starling.config.algorithms import AlgoConfig
from starling.config.cluster import RayConfig
from starling.config.curiosity import AnyCuriosity
from starling.config.device import DeviceConfig
from starling.config.env import EnvConfig
from starling.config.limits import Episodes, Items, NumEnvs, Port, Processes, Seconds, Steps, Threads
from starling.config.nets import NamedNets, NetworkConfig
from starling.config.parts import SHORT, NetConfig, Part
from starling.config.quantities import Interval, Quantity, Updates
from starling.config.stop import StopConfig, over_the_run

EVAL_KEYS = ("return", "return_std", "length", "env_steps", "arm")
"""Metrics `eval/KEY` that `eval.metrics` cannot name."""


class CheckpointConfig(Part):
    """Contents and frequency of checkpoints."""

    every: Interval | None = Field(
        None,
        description="env steps between checkpoints, or with a unit, e.g. 10000 updates; null: a tenth of the run",
    )
    exact: bool = Field(
        False,
        description="truncate all episodes at a checkpoint, so that a run that is killed and resumed equals one that"
        " never stopped, bit for bit (runtime=inline only); false: nothing is truncated, and a resumed run starts new"
        " episodes",
    )
    keep: Items = Field(3, ge=1, description="number of newest checkpoints to keep")
    keep_every: Steps | None = Field(None, ge=1, description="env steps between checkpoints that are kept indefinitely")
    best: bool = Field(True, description="also keep the checkpoint with the best score")
    replay: bool = Field(True, description="also save the tables; false: a resumed run fills them again")


class LogConfig(Part):
    """Frequency of metrics."""

    every: Interval | None = Field(
        None,
        description="env steps between rows of metrics, or with a unit, e.g. 500 updates, 2 min; null: a hundredth of"
        " the run",
    )
    episodes: Episodes | None = Field(
        None,
        ge=1,
        description="finished episodes between lines with episode, step, epsilon, mean reward, length, loss, Q value,"
        " and time; null: no such lines",
    )
    prometheus: Port | None = Field(
        None,
        description="port of this machine's loopback address that serves /metrics for Prometheus; 0: a free one, which"
        " is shown; null: none",
    )


class EvalConfig(Part):
    """Evaluation during training: whole episodes without exploration, in separate envs."""

    every: Interval | None = Field(
        None, description="env steps between evaluations, or with a unit, e.g. 100 episodes; null: none"
    )
    episodes: Episodes = Field(10, ge=1, description="episodes of one evaluation")
    metrics: list[str] = Field(
        default_factory=list, description="numbers to report from the env's info at the end of an episode"
    )

    @field_validator("metrics")
    @classmethod
    def _names_are_free(cls, names: list[str]) -> list[str]:
        for name in names:
            if name in EVAL_KEYS or name.startswith("arm/"):
                raise ValueError(f"{name!r} is a metric that every evaluation has; rename it in the env's info")
        return names


class SupervisionConfig(Part):
    """Restarts of worker processes that die or hang."""

    timeout: Seconds = Field(60.0, gt=0, description="seconds without a heartbeat after which a worker is killed")
    restarts: Items = Field(5, ge=0, description="restarts of one worker within ten minutes before it is given up")
    min_actors: Processes = Field(1, ge=1, description="the run ends if a learner has fewer actors left")
    reduction: Seconds = Field(
        30.0, gt=0, description="seconds that learners wait for each other's gradients before one counts as hung"
    )


class BatchingConfig(Part):
    """Batching of central inference; settings that are null are measured and adapted."""

    batch_envs: NumEnvs | None = Field(None, ge=1, description="envs that a batch waits for; null: all that can come")
    wait_ms: Seconds | None = Field(
        None, ge=0, description="longest wait for them in ms; null: the measured fixed cost of one call"
    )


class Config(Part):
    """A run. `algo` is the settings class of the algorithm that `algo.name` names."""

    run: str | None = Field(
        None,
        pattern=r"^\w[\w.\-]{0,127}$",
        description="name of the run's folder: up to 128 letters, digits, _, -, and ., the last two not first; null:"
        " made of env, algorithm, and time",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of everything random")
    runtime: Literal["inline", "processes", "ray"] = Field(
        "inline",
        description="where the roles run: inline (one process, exact resume), processes (every core), ray (a cluster)",
    )
    inference: Literal["local", "central"] = Field(
        "local", description="where the network acts: local (beside the envs) or central (one server for all actors)"
    )
    fetch_every: Updates = Field(
        1,
        description="updates after which an actor fetches new weights, when it begins a fragment; 1: whenever there are"
        " newer ones",
    )
    loaders: Threads | None = Field(
        None,
        ge=1,
        description="threads that copy and decompress the observations of a large batch from replay; null: two, or one"
        " if there is a single core; no result depends on it",
    )
    actors: Processes | None = Field(
        None,
        ge=1,
        description="env loops that share env.num; null: 1 inline, else one per core of this machine, or the nearest"
        " number that divides the batch of a synchronous algorithm",
    )
    learners: Processes = Field(
        1,
        ge=1,
        description="learners of the same agent, each with its share of the actors, tables, and batch; more than one"
        " cannot run inline: runtime=processes is then the default",
    )
    device: DeviceConfig = Field(
        default_factory=DeviceConfig,
        description="auto (cuda if available), cpu, cuda, cuda:1; or a section",
        json_schema_extra={SHORT: "learner"},
    )
    precision: Literal["float32", "tf32", "bfloat16", "float16", "auto"] = Field(
        "float32",
        description="of matrix products and convolutions in training and acting (evaluation always uses float32);"
        " bfloat16: mixed precision by torch.autocast, values and logits stay float32; float16: the same with a loss"
        " scale, for GPUs without bfloat16; tf32: matrix products of a GPU with 10 bits of mantissa; auto: bfloat16 if"
        " the processor reports instructions for it, float16 on an older GPU, else float32; chosen once per run and"
        " saved",
    )
    compile: bool | Literal["auto", "reduce-overhead"] = Field(
        False,
        description="compile the loss and its gradients with torch.compile, which takes half a minute at the first"
        " update; needs a C++ compiler and Python's headers on a CPU; auto: if these are installed; reduce-overhead:"
        " also record CUDA graphs, for small networks on a GPU",
    )
    threads: Threads | None = Field(
        None,
        ge=1,
        description="torch threads of a learner; null: all cores for images, else one, or one per loss (sac with large"
        " networks); 1 is best if the cores have other work too",
    )
    algo: AlgoConfig = Field(description="the algorithm and its settings")
    env: EnvConfig = Field(description="the environment")
    net: NetConfig = Field(default_factory=NetConfig, description="the network")
    nets: dict[str, NetworkConfig] = Field(
        default_factory=dict,
        description="networks configured one by one, by the names that starling algos NAME lists; what they leave out"
        " is as in net",
    )
    curiosity: list[AnyCuriosity] = Field(
        default_factory=list, description="intrinsic rewards, each a reward stream beside the environment's"
    )
    replay_from: str | None = Field(
        None, description="folder written by starling replay export, whose replay a new run starts with"
    )
    init_from: str | None = Field(
        None,
        min_length=1,
        description="weights that a new run starts with, as far as names and shapes fit: a run's folder (its newest"
        " checkpoint), RUN/checkpoints/NAME (best, newest, or step-...), or a safetensors file; optimizers and counters"
        " start fresh",
    )
    stop: StopConfig = Field(default_factory=StopConfig, description="when the run ends")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="checkpoints")
    log: LogConfig = Field(default_factory=LogConfig, description="metrics")
    eval: EvalConfig = Field(default_factory=EvalConfig, description="evaluation while training")
    batching: BatchingConfig = Field(default_factory=BatchingConfig, description="batches of central inference")
    supervision: SupervisionConfig = Field(
        default_factory=SupervisionConfig, description="restarts of processes that die or hang"
    )
    ray: RayConfig = Field(default_factory=RayConfig, description="placement on the cluster with runtime=ray")
    _references: dict[tuple[str | int, ...], tuple[str, Any]] = PrivateAttr(default_factory=dict)

    @property
    def references(self) -> dict[tuple[str | int, ...], tuple[str, Any]]:
        """References to environment variables: the text as written and its value, by path."""
        return self._references

    @field_validator("curiosity")
    @classmethod
    def _names_differ(cls, curiosity: list[AnyCuriosity]) -> list[AnyCuriosity]:
        names = ["extrinsic", *(part.stream for part in curiosity)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two reward streams are called {name!r}; give one of them another name")
        return curiosity

    @model_validator(mode="before")
    @classmethod
    def _learners_are_processes(cls, values: Any) -> Any:
        several = isinstance(values, dict) and isinstance(values.get("learners"), int) and values["learners"] > 1
        return {"runtime": "processes", **values} if several else values

    @model_validator(mode="after")
    def _one_process_has_one_learner(self) -> Config:
        if self.learners > 1 and self.runtime == "inline":
            raise ValueError(f"learners={self.learners} need processes of their own: set runtime=processes")
        return self

    @model_validator(mode="after")
    def _one_process_has_one_device(self) -> Config:
        if self.runtime == "inline" and (self.device.actors or self.device.inference):
            raise ValueError(
                "device.actors and device.inference need processes of their own: set runtime=processes or drop them"
            )
        return self

    @model_validator(mode="after")
    def _networks_are_those_of_the_algorithm(self) -> Config:
        if self.nets:
            self.algo.check_networks(self.nets, [part.stream for part in self.curiosity])
        return self

    @model_validator(mode="after")
    def _every_weight_has_a_use(self) -> Config:
        if self.env.reward_weight != 1 and not self.curiosity:
            raise ValueError(
                f"env.reward_weight={self.env.reward_weight:g} weighs the env's reward against those of curiosity, but"
                " there is none; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _exact_is_inline(self) -> Config:
        if self.checkpoint.exact and self.runtime != "inline":
            raise ValueError(
                f"checkpoint.exact needs runtime=inline: with runtime={self.runtime} the order of events is not"
                " reproducible; leave it out"
            )
        if self.checkpoint.exact and self.checkpoint_every.unit == "minutes":
            raise ValueError(
                "checkpoint.exact truncates episodes at every checkpoint, and minutes come at other steps in every run:"
                " set checkpoint.every in env steps, updates, or episodes"
            )
        return self

    @model_validator(mode="after")
    def _schedules_end(self) -> Config:
        if not self.stop.has_length:
            sections = {"algo": self.algo, "nets": self.nets, "curiosity": self.curiosity}
            for key in (key for name, section in sections.items() for key in over_the_run(section, name)):
                raise ValueError(
                    f"{key} is a schedule over the run, which has no end that it could count to: set stop.updates (or"
                    " stop.env_steps), or give the schedule a length of its own in env steps or updates"
                )
        return self

    @property
    def networks(self) -> NetConfig:
        """The settings of the networks: `nets`, or `net` for all of them."""
        return NamedNets.of(self.net, self.nets) if self.nets else self.net

    @property
    def checkpoint_every(self) -> Quantity:
        """Time between checkpoints."""
        every = self.checkpoint.every
        return self.stop.part(10) if every is None else Quantity.of(every, "env steps")

    @property
    def log_every(self) -> Quantity:
        """Time between rows of metrics."""
        return self.stop.part(100) if self.log.every is None else Quantity.of(self.log.every, "env steps")
