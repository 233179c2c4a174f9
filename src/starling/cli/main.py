"""The command `starling`. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from starling.cli import (
    bench,
    cluster,
    config,
    doctor,
    evaluate,
    listing,
    live,
    logs,
    metrics,
    plan,
    play,
    replay,
    report,
    resume,
    top,
    train,
    tune,
    verify_resume,
)
from starling.envs.faults import EnvFault
from starling.errors import UserError, escaped
from starling.process_exit import in_order

app = typer.Typer(
    name="starling",
    help="Distributed deep reinforcement learning: write an agent once, run it anywhere.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
UsageError: Any = typer.BadParameter.__mro__[1]  # typer does not export it
app.command("train")(train.train)
app.command("plan")(plan.plan)
app.command("tune-throughput")(tune.tune_throughput)
app.command("resume")(resume.resume)
app.command("eval")(evaluate.evaluate)
app.command("play")(play.play)
app.command("metrics")(metrics.metrics)
app.command("logs")(logs.logs)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.command("report")(report.report)
app.command("scorecard")(report.scorecard)
app.command("watch")(live.watch)
app.command("verify-resume")(verify_resume.verify_resume)
app.command("presets")(listing.presets)
app.command("algos")(listing.algos)
app.command("envs")(listing.envs)
app.add_typer(bench.bench_app, name="bench")
app.add_typer(cluster.cluster_app, name="cluster")
app.add_typer(config.config_app, name="config")
app.add_typer(replay.replay_app, name="replay")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"starling {version('starling-rl')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _usage_line(error: Any) -> str:
    """Format a usage error with a pointer to the help; empty if the help has just been shown."""
    message: str = error.format_message().rstrip(".").replace(". Did you", "; did you")
    if not message:
        return ""
    where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
    return f"{message[0].lower()}{message[1:]}{where}"


def _open_missing_streams() -> None:
    """Open closed standard streams (`>&-`) on /dev/null, so that no write fails and no file reuses their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (open to the end)


def _escape_unencodable() -> None:
    """Make the standard streams write characters that their encoding lacks as escapes, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(*lines: str) -> None:
    """Print escaped lines to stderr; ignore a stream that is gone."""
    with suppress(OSError):
        for line in lines:
            print(escaped(line), file=sys.stderr)


def main() -> None:
    """Run a command; user errors are printed without a traceback, with exit code 2.

    An `EnvFault` is printed as the env's traceback and one line, with exit code 1.
    """
    _open_missing_streams()
    _escape_unencodable()
    with in_order():
        try:
            sys.exit(app(standalone_mode=False))
        except UserError as error:
            _complain(*(f"error: {line}" for line in str(error).splitlines()))
            sys.exit(2)
        except typer.Abort:  # typer's exception for Ctrl-C
            raise KeyboardInterrupt from None
        except UsageError as error:
            if line := _usage_line(error):
                _complain(f"error: {line}")
            sys.exit(2)
        except EnvFault as fault:
            advice = "fix the env, then start again or resume the run from its last checkpoint"
            _complain(*fault.details.splitlines(), f"error: {fault}; {advice}")
            sys.exit(1)
