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
    for name in _silent(path, worker or ()):
        say(f"{name} has printed nothing")
    if not lines and not worker:
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
    from starling.experiment.run_folder.worker_logs import RUN

    text = line.text.removeprefix(f"{RUN}: ") if line.worker == RUN else line.text
    say(f"{line.time}  {line.worker}: {text}")


def _read(path: Path, names: Sequence[str] | None) -> list[Line]:
    """The lines of these workers, and what the run itself says of them; without names, all lines."""
    from starling.errors import UserError, cut, did_you_mean, printable
    from starling.experiment.run_folder.worker_logs import RUN, file_stem, logged_workers, merged

    logged = [RUN, *logged_workers(path)]
    if not names:
        return merged(path, logged)
    wanted = [file_stem(name) for name in names]
    known = list(dict.fromkeys([*logged, *_started(path)]))
    for name, stem in zip(names, wanted, strict=True):
        if not any(_is_of(one, stem) for one in known):
            near = did_you_mean(stem, known)
            raise UserError(f"{path} has no worker {printable(name)!r}{near} (known: {cut(', '.join(known), 300)})")
    chosen = [name for name in logged if any(_is_of(name, stem) for stem in wanted)]

    def is_of_them(line: Line) -> bool:
        return line.worker in chosen or any(_is_of(file_stem(line.text), stem) for stem in wanted)

    return [line for line in merged(path, dict.fromkeys([RUN, *chosen])) if is_of_them(line)]


def _silent(path: Path, names: Sequence[str]) -> list[str]:
    """Those of the names, of known workers, that no log belongs to."""
    from starling.experiment.run_folder.worker_logs import RUN, file_stem, logged_workers

    logged = [RUN, *logged_workers(path)]
    return [name for name in names if not any(_is_of(one, file_stem(name)) for one in logged)]


def _started(path: Path) -> list[str]:
    """The workers in the status of a run, named as their logs are."""
    from starling.errors import UserError
    from starling.experiment.run_folder.worker_logs import file_stem
    from starling.experiment.status import read_status

    try:
        status = read_status(path)
    except UserError:  # it is damaged: those with a log are known
        return []
    return [] if status is None else [file_stem(one.name) for hub in status.runtime.hubs for one in hub.workers]


def _is_of(name: str, stem: str) -> bool:
    """Return whether a name is that of this worker, or one of this kind."""
    return f"{name}-".startswith(f"{stem}-")
