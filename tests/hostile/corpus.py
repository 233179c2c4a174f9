"""Types and tools for attacks on files; the attacks themselves are in attacks_*.py.

An attack is a function that modifies a copy of a sound run or of an exported replay. `@attack` names the commands to
try afterwards and the outcome they must have:

    @attack("resume", "eval", ends=FALLS_BACK)
    def a_pickle_named_safetensors(place):
        \"\"\"Nothing is ever unpickled.\"\"\"
        ...
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

SETTINGS = [
    "dqn-cartpole", "env.num=2", "algo.learning_starts=100", "algo.n_step=3", "algo.prioritized={}",
    "algo.fragment=16", "algo.updates_per_step=0.1", "algo.capacity=1000", "net.torso.hidden=[8]", "threads=1",
    "algo.optimizer.schedule={name: LinearLR, args: {total_iters: 100}}", "stop.return=null",
]  # fmt: skip

STACKED = [
    *(setting for setting in SETTINGS if setting != "algo.prioritized={}"), "algo.n_step=50", "checkpoint.exact=true",
    "env.wrappers=[{name: FrameStackObservation, args: {stack_size: 2}}]",
]  # fmt: skip

COMMANDS = {
    "resume": ["resume", "{run}"],
    "resume stacked": ["resume", "{stacked}", "run=child", "stop.env_steps=800", "--runs={scratch}"],
    "branch": ["resume", "{run}", "run=child", "stop.env_steps=330", "--runs={scratch}"],
    "eval": ["eval", "{run}", "--episodes=1"],
    "eval best": ["eval", "{run}", "--episodes=1", "--checkpoint=best"],
    "eval 1": ["eval", "{run}", "--episodes=1", "--checkpoint=1"],
    "eval ²": ["eval", "{run}", "--episodes=1", "--checkpoint=²"],
    "play": ["play", "{run}", "--log={scratch}/steps.json", "--max-steps=3"],
    "metrics": ["metrics", "{run}"],
    "report": ["report", "{run}", "--out={scratch}/report.html"],
    "report csv": ["report", "{run}", "--out={scratch}/report.html", "--csv={scratch}/rows.csv"],
    "csv": ["metrics", "{run}", "--csv={scratch}/rows.csv"],
    "branch best": ["resume", "{run}", "--checkpoint=best", "run=child", "--runs={scratch}"],
    "show": ["config", "show", "{run}"],
    "diff": ["config", "diff", "dqn-cartpole", "{run}/config.yaml"],
    "info": ["replay", "info", "{run}"],
    "export": ["replay", "export", "{run}", "--out={scratch}/exported"],
    "init": ["train", *SETTINGS, "stop.env_steps=20", "init_from={run}", "run=child", "--runs={scratch}"],
    "init file": [
        "train", *SETTINGS, "stop.env_steps=20", "init_from={weights}/w.safetensors", "run=child", "--runs={scratch}",
    ],
    "start": ["train", *SETTINGS, "stop.env_steps=20", "replay_from={export}", "run=child", "--runs={scratch}"],
}
EVERY = ("resume", "branch", "eval", "play", "metrics", "report", "show", "info", "export")
"""Every command that opens a run."""

REFUSED = "refused"
"""One line, exit code 2."""
UNTOUCHED = "untouched"
"""Like REFUSED, and nothing in the run has changed."""
FALLS_BACK = "falls back"
"""The older checkpoint is used, with one line about what is wrong with the newest; exit code 0."""
UNHARMED = "unharmed"
"""The command succeeds as usual, without a traceback."""


@dataclass(frozen=True)
class Place:
    """The folders in which an attack is made."""

    root: Path

    @property
    def run(self):
        return self.root / "run"

    @property
    def stacked(self):
        """A run with frame stacks and exact checkpoints, which also contain the state of env loops and policies."""
        return self.root / "stacked"

    @property
    def export(self):
        return self.root / "export"

    @property
    def weights(self):
        """A safetensors file with the weights of the run, as another program would write it."""
        return self.root / "weights" / "w.safetensors"

    @property
    def outside(self):
        return self.root / "outside"

    @property
    def newest(self):
        """The newest checkpoint of the run."""
        return newest_of(self.run)

    def command(self, name):
        """The arguments of a command, with paths filled in."""
        arguments = COMMANDS[name]
        for folder in ("run", "stacked", "export", "weights", "scratch"):
            arguments = [part.replace(f"{{{folder}}}", str(self.root / folder)) for part in arguments]
        return arguments


def newest_of(run):
    return max((run / "checkpoints").glob("step-*"))


@dataclass(frozen=True)
class Ended:
    """The outcome of a command: exit code, output, processor seconds, and additional bytes of memory."""

    code: int
    out: str
    err: str
    seconds: float
    memory: int


@dataclass(frozen=True)
class Case:
    make: Callable[[Place], None]
    command: str
    ends: str

    def __str__(self):
        return f"{self.make.__name__}-{self.command}".replace(" ", "_")


CASES: list[Case] = []


def attack(*commands, ends=REFUSED):
    """Add an attack to the corpus, to be tried with each of these commands."""

    def register(make):
        CASES.extend(Case(make, command, ends) for command in commands)
        return make

    return register


def snapshot(folder):
    """Everything in a folder: kind, mode, size, link targets, and content of files that are not huge."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        is_read = path.is_file() and status.st_size < 2**30
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if is_read else None
        found[path.relative_to(folder)] = (status.st_mode, status.st_size if path.is_file() else None, content)
    return found


def sign(folder):
    """Update the checksums in a checkpoint's manifest to the current files."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [file for file in sorted(folder.iterdir()) if file.name != "manifest.json"]
    manifest["files"] = {file.name: _entry(file) for file in files}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _entry(file):
    content = file.read_bytes()
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def rewrite(folder, name, content):
    """Replace the content of a checkpoint file, with a valid checksum."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    sign(folder)


def change_manifest(folder, change):
    """Let `change(manifest)` modify a manifest or return another one."""
    manifest = json.loads((folder / "manifest.json").read_text())
    changed = change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest if changed is None else changed))


def change_document(folder, part, path, value):
    """Replace the value at a path such as `rng/state` in a part of the state; `value` is a leaf, {"value": 3}."""
    document = json.loads((folder / f"{part}.json").read_text())
    *parents, last = path.split("/")
    node = document["dict"]
    for key in parents:
        node = node[key]["dict"]
    node[last] = value
    rewrite(folder, f"{part}.json", json.dumps(document))


def change_array(folder, part, name, change):
    """Replace an array of a part by `change(array)`, with a valid checksum."""
    file = folder / f"{part}.safetensors"
    arrays = {key: np.array(value) for key, value in load(file.read_bytes()).items()}
    matching = [key for key in arrays if key.endswith(name)]
    assert matching, f"{name} is none of {sorted(arrays)}"
    for key in matching:
        arrays[key] = np.ascontiguousarray(change(arrays[key]))
    rewrite(folder, file.name, save(arrays))


def change_header(file, change):
    """The content of a safetensors file after `change(header)`."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    changed = change(header)
    text = json.dumps(header if changed is None else changed).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def change_export(export, change):
    """Let `change(columns)` modify the columns of an export's first file, with a valid checksum."""
    manifest = json.loads((export / "manifest.json").read_text())
    part = manifest["tables"]["replay"]["parts"][0]
    columns = {name: np.array(column) for name, column in load((export / part["file"]).read_bytes()).items()}
    change(columns)
    rewrite_export(export, save(columns))


def rewrite_export(export, content, **entry):
    """Replace the content of an export's first file, with a valid checksum; `entry` updates its manifest entry."""
    manifest = json.loads((export / "manifest.json").read_text())
    part = manifest["tables"]["replay"]["parts"][0]
    (export / part["file"]).write_bytes(content)
    part |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), **entry}
    (export / "manifest.json").write_text(json.dumps(manifest))
