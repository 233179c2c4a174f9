"""The folder of a run: where it is made, what lies in it."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starling.config import load as config_load
from starling.config.schema import Config
from starling.errors import UserError


@dataclass(frozen=True)
class RunFolder:
    """`config.yaml`, `metrics.jsonl`, `log.txt` and `checkpoints/` of one run."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

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
        """The resolved configuration that the run was started with."""
        try:
            return config_load.load(str(self.config_file))
        except UserError as error:
            lines = (line.removeprefix(f"{self.config_file} ") for line in str(error).splitlines())
            raise UserError("\n".join(f"{self.config_file}: {line}" for line in lines)) from None

    def log(self, line: str) -> None:
        """Add a line with the time to `log.txt`."""
        with self.log_file.open("a", encoding="utf-8") as handle:
            handle.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def copy_history(self, parent: RunFolder, rows: int, changes: dict[str, tuple[Any, Any]]) -> None:
        """Begin with the parent's first `rows` rows, and say whose child this is."""
        if parent.metrics_file.exists():
            lines = parent.metrics_file.read_text(encoding="utf-8").splitlines(keepends=True)[:rows]
            self.metrics_file.write_text("".join(lines), encoding="utf-8")
        note = {"parent": str(parent.path.resolve()), "rows": rows, "changes": changes}
        (self.path / "branch.json").write_text(json.dumps(note, indent=1), encoding="utf-8")


def check_writable(root: Path) -> None:
    """Refuse, before any work is done, a folder in which no run can be made; leaves nothing behind."""
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"{existing} is not a folder; choose another with --runs")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".starling-", dir=existing))
    except OSError as error:
        raise UserError(f"cannot write to {existing}: {error.strerror}; choose another folder with --runs") from None


def create(root: Path, config: Config) -> RunFolder:
    """A new folder under `root`; a taken name gets a number, so that nothing is ever overwritten."""
    env = config.env.id.replace("/", "-").replace(":", "-").replace(".", "-")
    name = config.run or f"{env}-{config.algo.name.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 10_000):
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot write to {root}: {error.strerror}; choose another folder with --runs") from None
        folder = RunFolder(path)
        folder.config_file.write_text(config_load.to_yaml(config), encoding="utf-8")
        return folder
    raise UserError(f"{root} holds 10,000 runs called {name!r}; choose another name")


def find(path: Path) -> RunFolder:
    """The run at `path`; says what is missing when it is none."""
    if not path.is_dir():
        raise UserError(f"no such run: {path}")
    folder = RunFolder(path)
    if not folder.config_file.is_file():
        raise UserError(f"{path} is not a run: it has no config.yaml")
    return folder
