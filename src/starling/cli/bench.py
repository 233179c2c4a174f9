"""`starling bench`: benchmarks of this machine."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from starling.cli.arguments import Allow, AsJson, Overrides

if TYPE_CHECKING:
    from starling.launch.plan import RunPlan
    from starling.tools.benchmark.replay import Found, Setting
    from starling.tools.benchmark.throughput import Throughput

bench_app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)
KINDS = ("env_step", "inference", "training")


@bench_app.command("throughput")
def throughput(
    preset: Annotated[str, typer.Option(metavar="PRESET|FILE", help="A preset's name or a YAML file.")],
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to measure, after the warm-up.")] = 60.0,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Measure env steps per second of real training, and the limit that this machine's cores allow.

    The cost of an env step is measured too, with all cores busy; efficiency is the speed divided by cores / cost.

    Example: starling bench throughput --preset impala-pong runtime=processes --seconds 60
    """
    from starling.cli.precheck import load_source

    config = load_source(preset, overrides or [], allow)

    from starling.launch.plan import validated_plan
    from starling.tools.benchmark.throughput import bench

    run_plan = validated_plan(config)
    found = bench(run_plan, seconds, say=lambda line: print(line, file=sys.stderr))
    print(as_table(found, run_plan))
    if as_json:
        print(json.dumps({"preset": preset, "overrides": overrides or [], **as_values(found, run_plan)}))


@bench_app.command("replay")
def replay(
    games: Annotated[
        list[str] | None,
        typer.Option(
            "--games", metavar="GAME", help="An Atari game, e.g. Pong; may be repeated.", show_default="six games"
        ),
    ] = None,
    observations: Annotated[
        int, typer.Option(min=10_000, help="Observations in the replay whose memory is measured.")
    ] = 1_000_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to measure speed, after filling.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Measure memory per million compressed observations, and items per second compared with other libraries.

    Each library runs in its own process with its defaults, then again with freed memory kept, as in our processes.

    The data is recorded from random play and inserted repeatedly until a replay is full and partly overwritten. Each of
    the default games takes some minutes.

    Example: starling bench replay --games Pong --games Breakout --json
    """
    from starling.tools.benchmark.replay import GAMES, RECORDED, Setting, bench

    fewer = min(RECORDED, observations)
    setting = Setting(tuple(games or GAMES), observations, recorded=fewer, items=fewer, seconds=seconds)
    found = bench(setting, say=lambda line: print(line, file=sys.stderr))
    print(replay_table(found))
    if as_json:
        print(json.dumps(replay_values(found, setting)))


def replay_values(found: Found, setting: Setting) -> dict[str, Any]:
    """Return the measurement as values for JSON: gigabytes, items, and seconds."""
    from dataclasses import asdict

    from starling.replay.codec import CHUNK, LEVEL
    from starling.tools.benchmark.machine import describe
    from starling.tools.benchmark.replay_memory import BATCH, N_STEP, NUM_ENVS
    from starling.tools.benchmark.replay_speed import OURS

    ours = found.speeds[OURS]
    more = {"batch": BATCH, "n_step": N_STEP, "envs": NUM_ENVS, "chunk": CHUNK, "level": LEVEL}
    return {
        "gigabytes_per_million": found.gigabytes_per_million,
        "items_per_s": ours.items_per_s,
        "peers": {name: speed.items_per_s for name, speed in found.speeds.items() if name != OURS},
        "ratio_to_best_peer": found.ratio_to_best_peer,
        "where_memory_is_kept": {
            "items_per_s": {name: speed.kept for name, speed in found.speeds.items()},
            "ratio_to_best_peer": found.ratio_where_memory_is_kept,
        },
        "bytes_per_item": {name: speed.bytes_per_item for name, speed in found.speeds.items()},
        "times_longer_than_10k": found.growth,
        "seconds": {
            game: {"small": asdict(full.small), "full": asdict(full.large)} for game, full in found.games.items()
        },
        "data": "real frames of random play, recorded once and inserted repeatedly",
        "settings": {**asdict(setting), **more},
        **describe("starling-rl", "numpy", "numba", "zstandard", "ale-py", "tianshou", "cpprb", "stable-baselines3"),
    }


def replay_table(found: Found) -> str:
    """Format the measurement as a table of name, value, and explanation."""
    rows = [(name, f"{size:.3f}", "GB per million observations") for name, size in found.gigabytes_per_million.items()]
    for name, speed in found.speeds.items():
        held = f"{speed.kept:,.0f} if freed memory is kept; {speed.bytes_per_item:,.0f} bytes per item"
        rows.append((name, f"{speed.items_per_s:,.0f}", f"items/s, {held}"))
    ratios = {"ratio": found.ratio_to_best_peer, "memory kept": found.ratio_where_memory_is_kept}
    for name, ratio in ratios.items():
        rows.append((name, "-" if ratio is None else f"{ratio:.2f}", "times the fastest other installed library"))
    for name, growth in found.growth.items():
        rows.append((name, f"{growth:.2f}", "times as long as in a replay of 10,000 items"))
    return "\n".join(f"{name:<18} {value:>12}  {about}" for name, value, about in rows)


def settings_of(run_plan: RunPlan) -> dict[str, Any]:
    """Settings that affect a run's speed besides its algorithm and network."""
    from starling.hardware import device
    from starling.launch.plan import plan_threads

    config = run_plan.config
    return {
        "runtime": config.runtime,
        "inference": config.inference,
        "actors": run_plan.actors,
        "env.num": config.env.num,
        "threads": plan_threads(run_plan),
        "device": str(device(config)),
        "precision": config.precision,
    }


def as_values(found: Throughput, run_plan: RunPlan) -> dict[str, Any]:
    """Return the measurement as values for JSON: env steps and frames per second, shares, core seconds per env step."""
    from dataclasses import asdict

    from starling.tools.benchmark.machine import describe

    reading, costs = found.reading, found.costs
    return {
        "seconds": reading.seconds,
        "steps_per_s": reading.steps_per_s,
        "frames_per_s": found.frames_per_s,
        "limit_steps_per_s": costs.limit,
        "efficiency": found.efficiency,
        "lag": reading.lag,
        "busy": reading.busy,
        "costs": {**{kind: asdict(getattr(costs, kind)) for kind in KINDS}, "limits": list(found.limits)},
        "settings": settings_of(run_plan),
        **describe("starling-rl", "torch", "numpy", "gymnasium", "ale-py"),
    }


def as_table(found: Throughput, run_plan: RunPlan) -> str:
    """Format the measurement as a table of name, value, and explanation."""
    from starling.cli.plan import micro

    reading, costs = found.reading, found.costs
    settings = ", ".join(f"{name} {value}" for name, value in settings_of(run_plan).items())
    limits = " and ".join(f"{limit:,.0f}" for limit in found.limits)
    kinds = ((kind.replace("_", " "), getattr(costs, kind)) for kind in KINDS)
    rows = [
        ("speed", f"{reading.steps_per_s:,.0f}", f"steps/s, {found.frames_per_s:,.0f} frames/s: {settings}"),
        ("limit", f"{costs.limit:,.0f}", f"steps/s if {costs.cores} cores did nothing else (measured: {limits})"),
        ("efficiency", f"{found.efficiency:.2f}", "of the limit"),
        ("lag", "-" if reading.lag is None else f"{reading.lag:.2f}", "updates between acting and learning"),
        *((role, f"{share:.0%}", "of the time busy") for role, share in reading.busy.items()),
        *((name, micro(c.median), f"us of one core per step ({micro(c.low)} to {micro(c.high)})") for name, c in kinds),
    ]
    return "\n".join(f"{name:<10} {value:>12}  {about}" for name, value, about in rows)
