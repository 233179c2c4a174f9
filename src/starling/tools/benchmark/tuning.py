"""Find the fastest settings of a run on this machine, by short trials that vary one setting at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from starling.config.schema import Config
from starling.errors import UserError
from starling.hardware import cores
from starling.launch.plan import RunPlan, plan_threads
from starling.tools.benchmark.throughput import Say, watch

MARGIN = 1.03
"""Speedup above which a change is kept; less is noise."""
MOST_TRIALS = 12
Runtime = Literal["inline", "processes"]


@dataclass(frozen=True)
class Choice:
    """Settings that determine where work is done, without changing what is learned from a batch."""

    runtime: Runtime
    inference: Literal["local", "central"]
    actors: int
    threads: int
    num_envs: int  # number of envs

    @classmethod
    def of(cls, run_plan: RunPlan) -> Choice:
        config = run_plan.config
        if config.runtime == "ray":
            raise UserError("only inline and processes are tuned; for a cluster set actors and ray.nodes yourself")
        return cls(config.runtime, config.inference, run_plan.actors, plan_threads(run_plan), config.env.num)

    def apply(self, config: Config) -> Config:
        """Return the configuration with these settings."""
        changes = {
            "runtime": self.runtime,
            "inference": self.inference,
            "actors": self.actors,
            "threads": self.threads,
            "env": config.env.model_copy(update={"num": self.num_envs}),
        }
        return config.model_copy(update=changes)

    def overrides(self) -> list[str]:
        """Return these settings as `key=value` overrides."""
        names = ("runtime", "inference", "actors", "threads")
        return [*(f"{name}={getattr(self, name)}" for name in names), f"env.num={self.num_envs}"]


@dataclass(frozen=True)
class Trial:
    """Speed of a choice, or 0 and the reason why it could not be tried."""

    choice: Choice
    steps_per_s: float
    refused: str = ""


Attempt = Callable[[Choice], Trial]
Variation = Callable[[Choice], Sequence[Choice]]


def tune(run_plan: RunPlan, seconds: float, say: Say, *, vary_envs: bool) -> Iterator[Trial]:
    """Yield trials of `seconds` each, starting with the unchanged run; `vary_envs`: also vary the number of envs."""
    starts = [Choice.of(run_plan), _elsewhere(run_plan)]
    return search(
        starts, _plan(cores(), vary_envs=vary_envs), lambda choice: attempt(run_plan.config, choice, seconds, say)
    )


def attempt(config: Config, choice: Choice, seconds: float, say: Say) -> Trial:
    """Measure a run with these settings, if they are possible."""
    try:
        return Trial(choice, watch(choice.apply(config), seconds, say).steps_per_s)
    except UserError as error:
        return Trial(choice, 0.0, str(error))


def _elsewhere(run_plan: RunPlan) -> Choice:
    """Return the choice for the other runtime, with its default settings."""
    other = "processes" if run_plan.config.runtime == "inline" else "inline"
    changes = {"runtime": other, "inference": "local", "actors": None}
    return Choice.of(replace(run_plan, config=run_plan.config.model_copy(update=changes)))


def _plan(count: int, *, vary_envs: bool) -> list[tuple[Runtime, Variation]]:
    """Return the variations for `count` cores, in order; actors come twice, as other settings may change the best."""

    def actors(choice: Choice) -> list[Choice]:
        numbers = sorted({1, count - 1, count, 2 * count})
        return [replace(choice, actors=n) for n in numbers if 1 <= n <= choice.num_envs]

    def inference(choice: Choice) -> list[Choice]:
        return [replace(choice, inference="local"), replace(choice, inference="central")]

    def threads(choice: Choice) -> list[Choice]:
        return [replace(choice, threads=n) for n in sorted({1, count})]

    def more_envs(choice: Choice) -> list[Choice]:
        numbers = (choice.num_envs // 2, choice.num_envs * 2, choice.num_envs * 4)
        return [replace(choice, num_envs=n) for n in numbers if n >= choice.actors]

    return [
        ("processes", actors),
        ("processes", inference),
        ("processes", threads),
        ("inline", threads),
        *((("processes", more_envs), ("inline", more_envs)) if vary_envs else ()),
        ("processes", actors),
    ]


def search(starts: Sequence[Choice], plan: Sequence[tuple[Runtime, Variation]], attempt: Attempt) -> Iterator[Trial]:
    """Try the starts, then vary one setting after another around the fastest choice so far of its runtime."""
    trials: dict[Choice, Trial] = {}

    def new(choices: Sequence[Choice]) -> Iterator[Trial]:
        for choice in choices:
            if choice not in trials and len(trials) < MOST_TRIALS:
                trials[choice] = attempt(choice)
                yield trials[choice]

    yield from new(starts)
    for runtime, vary in plan:
        around = fastest([trial for trial in trials.values() if trial.choice.runtime == runtime])
        yield from new(vary(around.choice))


def fastest(trials: Sequence[Trial]) -> Trial:
    """Return the fastest trial; a later one counts only if it is faster by `MARGIN`."""
    best = trials[0]
    for trial in trials[1:]:
        if trial.steps_per_s > MARGIN * best.steps_per_s:
            best = trial
    return best
