"""Read runs as plain data. Nothing that a run names is imported, and all files are read within the limits of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starling.config import secrets
from starling.config.dialect import parse
from starling.config.load import load, to_shown
from starling.errors import UserError, printable
from starling.experiment.run_folder.disk import read_bounded
from starling.experiment.run_folder.folder import RunFolder, find
from starling.experiment.run_folder.lock import is_locked
from starling.experiment.run_folder.log import LogLine, log_lines, read_log
from starling.experiment.run_folder.rows import Rows, damage_line
from starling.tools.report.events import Event, events_of
from starling.tools.report.metric_columns import MOST_COLUMNS, Table, read_table
from starling.tools.report.videos import Video, videos_of

_CONFIG_BYTES = 2**20
_COUNTS = re.compile(r", [\d,]+ env steps, (no score|score ).*", re.DOTALL)
"""What follows the reason at the end of a run: its steps and scores."""
_DIED = re.compile(r"^.{0,200} died \(", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Run:
    """A run as plain data.

    Attributes:
        name: short name that is unique in the report.
        path: its folder.
        settings: its configuration with secrets hidden.
        table: its metrics.
        status: whether it goes on, or why it ended.
        is_running: a process of this machine trains in the folder.
        events: messages of its log, the last ones.
        earlier_events: number of messages before them.
        crashes: workers that died, as far as the log tells.
        videos: its videos.
        problems: one line for everything that is missing or damaged.
    """

    name: str
    path: Path
    settings: Mapping[str, Any]
    table: Table
    status: str
    is_running: bool = False
    events: tuple[Event, ...] = ()
    earlier_events: int = 0
    crashes: int = 0
    videos: tuple[Video, ...] = ()
    problems: tuple[str, ...] = field(default=())

    @property
    def env(self) -> str:
        return str(self.setting("env.id"))

    @property
    def algorithm(self) -> str:
        return str(self.setting("algo.name"))

    @property
    def seed(self) -> Any:
        return self.setting("seed")

    def setting(self, key: str, default: Any = None) -> Any:
        """Return a setting by its dotted key."""
        value: Any = self.settings
        for part in key.split("."):
            value = value.get(part, default) if isinstance(value, Mapping) else default
        return value


def read_run(path: Path, name: str = "") -> Run:
    """Read a run that may be of anybody and in any state.

    Raises:
        UserError: there is no run, it has no metrics yet, or too little of it can be read.
    """
    folder = find(path)
    problems: list[str] = []
    settings = _settings(folder, problems)
    table = _table(folder, problems)
    text = read_log(folder.log_file)
    lines = log_lines(text)
    is_running = is_locked(folder.path)
    events, earlier = events_of(lines)
    videos, left_out = videos_of(folder.path)
    return Run(
        name=name or path.resolve().name,
        path=path,
        settings=settings,
        table=table,
        status=_status(lines, is_running),
        is_running=is_running,
        events=tuple(events),
        earlier_events=earlier,
        crashes=len(_DIED.findall(text)),
        videos=tuple(videos),
        problems=(*problems, *left_out),
    )


def read_runs(paths: list[Path]) -> tuple[list[Run], list[str]]:
    """Read several runs, each folder once; also return one line for each that cannot be read."""
    found: list[Run] = []
    lines: list[str] = []
    wanted = list({path.resolve(): path for path in paths}.values())
    for path, name in zip(wanted, names_of(wanted), strict=True):
        try:
            found.append(read_run(path, name))
        except UserError as error:
            lines += str(error).splitlines()[:1]
    return found, lines


def names_of(paths: list[Path]) -> list[str]:
    """Return the names of folders, with as many parents as make them differ."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _settings(folder: RunFolder, problems: list[str]) -> Mapping[str, Any]:
    """Return the checked configuration with secrets hidden, or else what a damaged or older one says."""
    try:
        return to_shown(load(str(folder.config_file), derive=False, imports=False))
    except UserError as error:
        problem = str(error).splitlines()[0]
    try:
        content = read_bounded(folder.config_file, _CONFIG_BYTES).decode()
        parsed = parse(content, str(folder.config_file))
        values = secrets.hide(parsed)
    except (OSError, UnicodeDecodeError, UserError) as error:
        raise UserError(f"{folder.path}: config.yaml cannot be read ({printable(error)})") from None
    env, algo = (values.get(key) if isinstance(values, dict) else None for key in ("env", "algo"))
    if not (isinstance(env, dict) and isinstance(env.get("id"), str) and isinstance(algo, dict)):
        raise UserError(f"{folder.path}: config.yaml names no env and algorithm, so the run cannot be grouped")
    if secrets.resolve(parsed, [])[1]:  # the problem may quote the value of a variable, and a report is passed on
        problem = f"starling config show {folder.path} says why"
    problems.append(f"config.yaml is not complete or not valid here ({problem})")
    return dict(values)


def _table(folder: RunFolder, problems: list[str]) -> Table:
    if not folder.metrics_file.exists():
        raise UserError(f"{folder.path} has no metrics.jsonl: nothing has been written yet, or it was removed")
    rows = Rows(folder.metrics_file, finished=True)
    table = read_table(rows)
    if rows.damaged:
        problems.append(damage_line(folder.metrics_file, rows.damaged))
    if table.left_out:
        problems.append(f"{folder.metrics_file}: keys beyond the first {MOST_COLUMNS:,} are left out")
    if not table.rows:
        raise UserError(f"{folder.path} has no rows of metrics yet")
    return table


def _status(lines: list[LogLine], is_running: bool) -> str:
    phases = [line.text for line in lines if line.text.startswith(("run: ", "resuming from ", "finished: "))]
    if is_running:
        return "in progress"
    if phases and phases[-1].startswith("finished: "):
        return _COUNTS.sub("", phases[-1])
    return "no end in its log: killed, still running on another machine, or the log is missing"
