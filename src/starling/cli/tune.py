"""`starling tune-throughput`"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from starling.cli.arguments import Allow, AsJson, Overrides, Source
from starling.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starling.config.schema import Config
    from starling.tools.benchmark.tuning import Choice, Trial

COLUMNS = {"runtime": "runtime", "inference": "inference", "actors": "actors", "threads": "threads", "num_envs": "envs"}
"""Attributes of a choice, each with its heading."""


def tune_throughput(
    source: Source,
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to measure each trial.")] = 10.0,
    vary_envs: Annotated[
        bool, typer.Option("--envs", help="Also vary env.num, which may change the batches of on-policy algorithms.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml", help="Write the whole configuration with the fastest settings.", show_default="none"
        ),
    ] = None,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Find the runtime, actors, threads, and inference that make a run fastest on this machine.

    Makes at most 12 short runs that vary one setting at a time; batches, fragments, and updates stay as they are.
    Ctrl-C stops with the best so far.

    Example: starling tune-throughput impala-pong --out tuned.yaml && starling train tuned.yaml
    """
    from starling.cli.precheck import load_source

    _check_out(out)
    config = load_source(source, overrides or [], allow, seals=out is not None)

    from starling.launch.plan import validated_plan
    from starling.tools.benchmark.tuning import fastest, tune

    run_plan = validated_plan(config)
    found = tune(run_plan, seconds, lambda line: print(line, file=sys.stderr), vary_envs=vary_envs)
    trials = _shown(found)
    if not any(trial.steps_per_s for trial in trials):
        raise UserError(trials[0].refused if trials else "stopped before the first trial ended")
    best = fastest(trials)
    if out is not None:
        _write(out, best.choice.apply(config))
    print(_closing(trials[0], best, source, overrides or [], out))
    if as_json:
        print(json.dumps(_as_values(trials, best, source, overrides or [], seconds)))


def _check_out(out: Path | None) -> None:
    """Raise `UserError` before any work if the output file could not be written or loaded again."""
    if out is None:
        return
    if out.suffix not in (".yaml", ".yml"):
        raise UserError(f"--out {out}: the name must end in .yaml, or starling train would take it for a preset")
    if out.is_dir():
        raise UserError(f"--out {out}: this is a folder; name a file")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: {out.parent} is not a folder")


def _shown(found: Iterator[Trial]) -> list[Trial]:
    """Print each trial as it ends and return all of them; Ctrl-C stops early."""
    trials: list[Trial] = []
    print(" ".join(f"{heading:>9}" for heading in COLUMNS.values()) + f" {'steps/s':>10}", flush=True)
    try:
        for trial in found:
            trials.append(trial)
            print(_line(trial), flush=True)
    except KeyboardInterrupt:
        print("stopped; this is the best so far")
    return trials


def _line(trial: Trial) -> str:
    settings = " ".join(f"{getattr(trial.choice, name):>9}" for name in COLUMNS)
    if trial.refused:
        return f"{settings} {'-':>10}  {trial.refused}"
    return f"{settings} {trial.steps_per_s:>10,.0f}"


def _write(out: Path, config: Config) -> None:
    from starling.config.load import secrets_warning, to_yaml
    from starling.experiment.run_folder.disk import output

    mode = 0o666 if secrets_warning(config) is None else 0o600
    try:
        with output(out, mode) as file:
            file.write(to_yaml(config, comments=True))
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from None


def _closing(start: Trial, best: Trial, source: str, overrides: list[str], out: Path | None) -> str:
    """Format the best result and the command that uses it."""
    from starling.config.secrets import hide_override

    use = [str(out)] if out is not None else [source, *map(hide_override, overrides), *best.choice.overrides()]
    gain = "" if start.refused else f", {best.steps_per_s / start.steps_per_s:.2f} times the speed before"
    return f"\nfastest: {best.steps_per_s:,.0f} steps/s{gain}\nuse:     starling train {' '.join(use)}"


def _as_values(trials: list[Trial], best: Trial, source: str, overrides: list[str], seconds: float) -> dict[str, Any]:
    from starling.tools.benchmark.machine import describe

    def settings(choice: Choice) -> dict[str, Any]:
        return {("env.num" if name == "num_envs" else name): getattr(choice, name) for name in COLUMNS}

    tried = [
        {**settings(trial.choice), "steps_per_s": trial.steps_per_s}
        | ({"refused": trial.refused} if trial.refused else {})
        for trial in trials
    ]
    return {
        "preset": source,
        "overrides": overrides,
        "seconds": seconds,
        "best": settings(best.choice),
        "steps_per_s": best.steps_per_s,
        "trials": tried,
        **describe("starling-rl", "torch", "numpy", "gymnasium", "ale-py"),
    }
