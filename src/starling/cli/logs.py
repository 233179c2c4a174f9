"""`starling logs`"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starling.cli.arguments import Run
from starling.cli.show import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starling.experiment.run_folder.worker_logs import Line

LOOK_SECONDS = 0.5


def logs(
    run: Run,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="NAME",
            help="Only this worker, such as 'actor 3', or all of a kind, such as actor; may be repeated.",
            show_default="all, and the run's own messages",
        ),
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="Lines to show.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new lines until Ctrl-C.")] = False,
) -> None:
    """Show what a run and its workers have printed, merged by time.

    The stacks of workers that hung are in their logs, too.

    Example: starling logs runs/mine --worker 'actor 3'
    """
    from starling.experiment.run_folder.folder import find
    from starling.experiment.run_folder.worker_logs import newest_write

    path = find(run).path
    lines = _read(path, worker)
    shown: Counter[Line] = Counter(lines)
    for line in lines[-last:]:
        _show(line)
    if not lines:
        say("no lines yet")
    changed = newest_write(path)
    while follow:
        try:
            time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            return
        if (newest := newest_write(path)) == changed:
            continue
        changed = newest
        lines = _read(path, worker)
        seen: Counter[Line] = Counter()
        for line in lines:
            seen[line] += 1
            if seen[line] > shown[line]:
                _show(line)
        shown = Counter(lines)


def _show(line: Line) -> None:
    say(f"{line.time}  {line.worker}: {line.text}")


def _read(path: Path, names: Sequence[str] | None) -> list[Line]:
    """The lines of these workers, and what the run itself says of them; without names, all lines."""
    from starling.errors import UserError, did_you_mean, printable
    from starling.experiment.run_folder.worker_logs import RUN, file_stem, logged_workers, merged

    known = [RUN, *logged_workers(path)]
    if not names:
        return merged(path, known)
    wanted = [file_stem(name) for name in names]
    chosen = [name for name in known if any(f"{name}-".startswith(f"{stem}-") for stem in wanted)]
    for name, stem in zip(names, wanted, strict=True):
        if not any(f"{one}-".startswith(f"{stem}-") for one in known):
            raise UserError(f"{path} has no log of a worker {printable(name)!r}{did_you_mean(stem, known)}")

    def is_of_them(line: Line) -> bool:
        return line.worker in chosen or any(f"{file_stem(line.text)}-".startswith(f"{stem}-") for stem in wanted)

    return [line for line in merged(path, dict.fromkeys([RUN, *chosen])) if is_of_them(line)]
