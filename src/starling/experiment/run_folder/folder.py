"""The folder of a run: create it, find it, and access its files."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from starling.config import load as config_load
from starling.config.dialect import parse
from starling.config.schema import Config
from starling.errors import UserError, quoted
from starling.experiment.run_folder import trust
from starling.experiment.run_folder.contents import check_contents
from starling.experiment.run_folder.disk import GrowingFile, make_folder, publish
from starling.experiment.run_folder.rows import Rows, read_content, to_json

GIVEN = "config.given.yaml"
"""The file that the user prepared, in the folder of a run that was started from it."""


class RunGoneError(Exception):
    """The folder of a run was deleted or moved."""


@dataclass(frozen=True)
class RunFolder:
    """One run's `config.yaml`, `metrics.jsonl`, `log.txt`, and `checkpoints/`, and `trust.json` if it has imports."""

    path: Path
    allow: tuple[str, ...] = ()  # packages that may be imported if another user made the folder
    config_name: str = "config.yaml"

    @property
    def config_file(self) -> Path:
        return self.path / self.config_name

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def log_file(self) -> Path:
        return self.path / "log.txt"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def config(self) -> Config:
        """Load the resolved configuration that the run was started with."""
        try:
            return config_load.load(str(self.config_file), derive=False, vet=self.vet)
        except trust.ForeignCodeError:
            raise
        except UserError as error:
            lines = (line.removeprefix(f"{self.config_file} ") for line in str(error).splitlines())
            raise UserError(*(f"{self.config_file}: {line}" for line in lines)) from None

    def vet(self, file: str, values: dict[str, Any]) -> None:
        """Raise `ForeignCodeError` if the content of a YAML file imports code that the user has not allowed."""
        trust.check(self.path, values, self.allow)

    def check_cluster(self, overrides: Sequence[str] = ()) -> None:
        """Raise `ForeignCodeError` if training with `overrides` would join a cluster that the user has not named."""
        settings, _ = config_load.merge(str(self.config_file), (), vet=self.vet)
        typed = [override.partition("=")[0] for override in overrides]
        trust.check_cluster(self.path, settings.values, self.allow, typed)

    def vouches_for_cluster(self, overrides: Sequence[str]) -> bool:
        """Return True if the user has allowed the cluster of the run with `overrides`, or it names none."""
        try:
            self.check_cluster(overrides)
        except trust.ForeignCodeError:
            return False
        return True

    def options(self, *, joins: bool) -> str:
        """Return the options `--allow PACKAGE` that a command on this run needs; `joins`: it trains, like `resume`."""
        try:
            values = config_load.merge(str(self.config_file), (), derive=False)[0].values
        except UserError:
            return ""  # the command itself will report the error
        return trust.options(self.path, values, joins=joins and values.get("runtime") == "ray")

    def check_algorithm(self, overrides: Sequence[str]) -> None:
        """Raise `UserError` if `overrides` name another algorithm, which has other settings."""
        name = self.config().algo.name
        asked, _ = config_load.merge(str(self.config_file), overrides, derive=False, vet=self.vet)
        section = asked.values.get("algo")
        other = section.get("name") if isinstance(section, dict) else section
        if other != name:
            mine = [override for override in overrides if override.partition("=")[0] in ("algo", "algo.name")]
            raise UserError(
                f"a branch cannot change the algorithm: {' '.join(mine)}, and {self.path} has algo.name={name};"
                " start a new run with starling train instead"
            )

    def log(self, line: str) -> None:
        """Append a line with the time to `log.txt`; on a full disk, lines are buffered in memory."""
        self._log.append(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())

    @cached_property
    def _log(self) -> GrowingFile:
        return GrowingFile(self.log_file)

    def check_there(self) -> None:
        """Raise `RunGoneError` if the run was deleted or moved; other errors of the file system are ignored."""
        try:
            self.config_file.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise RunGoneError(f"{self.path} is gone: it was deleted or moved, so the run cannot be saved") from None
        except OSError:
            pass

    def check_rows(self) -> None:
        """Raise `UserError` if the rows of metrics exceed the limits of `Rows`, before a new folder is created."""
        if self.metrics_file.exists():
            deque(Rows(self.metrics_file), maxlen=0)

    def copy_history(self, parent: RunFolder, changes: dict[str, tuple[Any, Any]], rows: int) -> None:
        """Copy the parent's rows; write `branch.json` with the parent's path, the shared rows, and changed settings."""
        note = {"parent": str(parent.path.resolve()), "rows": rows, "changes": changes}
        with _refusing(self.path):
            if parent.metrics_file.exists():
                publish(self.metrics_file, read_content(parent.metrics_file))
            publish(self.path / "branch.json", to_json(note, indent=1))


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Turn an `OSError` into a `UserError` that says what to do if `folder` is not writable."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder with --runs") from None


def check_writable(root: Path) -> None:
    """Raise `UserError` if no run can be created in `root`; leaves no files behind."""
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"{existing} is not a folder; choose another with --runs")
    with _refusing(existing):
        os.rmdir(tempfile.mkdtemp(prefix=".starling-", dir=existing))


def create(
    root: Path, config: Config, warn: Callable[[str], None] = lambda line: None, *, seal_cluster: bool = True
) -> RunFolder:
    """Create a folder under `root`, sealed as the user's own. A number is added to a name that exists already.

    `seal_cluster=False` leaves the cluster that `config` names out of the seal.
    """
    env = config.env.id.replace("/", "-").replace(":", "-").replace(".", "-")
    name = config.run or f"{env}-{config.algo.name.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 10_000):
        path = root / (name if number == 1 else f"{name}-{number}")
        with _refusing(root):
            root.mkdir(parents=True, exist_ok=True)
            try:
                make_folder(path, exist_ok=False)
            except FileExistsError:
                continue
            folder = RunFolder(path)
            if (problem := _save_config(folder, config, seal_cluster)) is not None:
                warn(f"warning: {problem}")
            return folder
    raise UserError(f"{root} holds 10,000 runs called {name!r}; choose another name")


def find_prepared(root: Path, config: Config, file: Path | None, say: Callable[[str], None]) -> Path | None:
    """Return the folder of the run `config.run` under `root` if the user has prepared it; else None, and say why.

    It is prepared if `file`, from which the configuration was loaded, is in it, and nothing else.
    """
    folder = root / (config.run or "")
    if config.run is None or file is None or not folder.is_dir() or not os.path.samefile(folder, file.parent):
        return None
    if problem := _why_not_prepared(folder, file.name):
        say(f"{folder} {problem}: the run gets a folder of its own")
        return None
    return folder


def take_over(path: Path, config: Config, file: Path | None, warn: Callable[[str], None]) -> RunFolder:
    """Make a run of a folder that `find_prepared` has found and that is locked now; the file in it is kept as `GIVEN`.

    Raises:
        UserError: Something else has come into the folder meanwhile.
    """
    name = "" if file is None else file.name
    if problem := _why_not_prepared(path, name):
        raise UserError(f"{path} {problem}, which came after this run was started: start it again")
    folder = RunFolder(path)
    with _refusing(path):
        if name == folder.config_name and not os.path.lexists(path / GIVEN):
            os.link(folder.config_file, path / GIVEN)  # the same file: `_save_config` replaces the other name
        if (problem := _save_config(folder, config, seal_cluster=True)) is not None:
            warn(f"warning: {problem}")
    return folder


def _why_not_prepared(folder: Path, name: str) -> str | None:
    """Return the reason why a folder is not one that holds only the file `name`, and perhaps a lock of nobody."""
    if folder.stat().st_uid != os.geteuid():
        return "belongs to another user"
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                return f"holds {quoted(entry.name)}, which is not a plain file"
            same = entry.name == GIVEN and os.path.samefile(entry.path, folder / name)  # from a start that was killed
            if entry.name not in (name, ".lock") and not same:
                return f"holds more than {name} ({quoted(entry.name)})"
    return None


def of_config(source: str, allow: Sequence[str] = ()) -> RunFolder | None:
    """Return the run that contains the YAML file `source` or the target of a link; None for presets and other files.

    Beside a file, what a run writes tells; a folder further up must have a `config.yaml` too.
    """
    paths = (os.path.realpath(source), os.path.abspath(source)) if config_load.is_file(source) else ()
    for file in map(Path, paths):
        for place in file.parents:
            has_traces = any(os.path.lexists(place / name) for name in ("checkpoints", "metrics.jsonl"))
            if has_traces and (place == file.parent or os.path.lexists(place / "config.yaml")):
                return RunFolder(place, tuple(allow), str(file.relative_to(place)))
    return None


@dataclass
class Vetting:
    """Vets a YAML file and those that it derives from: each like the runs that contain it or a file before it."""

    allow: Sequence[str] = ()
    runs: list[RunFolder] = field(default_factory=list)

    def __call__(self, file: str, values: dict[str, Any]) -> None:
        """Raise `ForeignCodeError` if `values` import code that the user has not allowed."""
        if (run := of_config(file, self.allow)) is not None:
            self.runs.append(run)
        for each in self.runs:
            each.vet(file, values)

    def check_cluster(self, overrides: Sequence[str] = ()) -> None:
        """Raise `ForeignCodeError` if training would join a cluster of a run that the user has not named."""
        for run in self.runs:
            run.check_cluster(overrides)


def _save_config(folder: RunFolder, config: Config, seal_cluster: bool) -> str | None:
    """Write and seal `config.yaml`; if it contains secrets, other users can never read it.

    Returns one line if the run cannot be sealed as the user's own.
    """
    text = config_load.to_yaml(config)
    problem = trust.seal(folder.path, parse(text, str(folder.config_file)), cluster=seal_cluster)
    if config_load.secrets_warning(config) is None:
        publish(folder.config_file, text.encode())
        return problem
    mode = stat.S_IMODE(folder.path.stat().st_mode)
    folder.path.chmod(0o700)  # until the file itself is private
    publish(folder.config_file, text.encode())
    folder.config_file.chmod(0o600)
    folder.path.chmod(mode)
    return problem


def find(path: Path, allow: Sequence[str] = ()) -> RunFolder:
    """Return the run at `path`, which may import the packages in `allow`; raises `UserError` if there is no run."""
    if not path.is_dir():
        raise UserError(f"no such run: {path}")
    folder = RunFolder(path, tuple(allow))
    if not os.path.lexists(folder.config_file):
        raise UserError(f"{path} is not a run: it has no config.yaml")
    check_contents(path)
    if not folder.config_file.is_file():
        raise UserError(f"{path} is not a run: its config.yaml is not a file")
    return folder
