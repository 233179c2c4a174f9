"""Start a new run with the weights of another one (`init_from`): read them, and match them by name and shape.

A layer is taken as a whole or not at all: all of its tensors must be there, with the same shapes. Optimizers and
counters start fresh. Only the weights of the other run are read, not its configuration, which might import anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from starling.errors import UserError, printable
from starling.experiment.run_folder import checkpoint, folder
from starling.experiment.run_folder.arrays import read_arrays
from starling.experiment.run_folder.checkpoint_schema import state_check
from starling.experiment.run_folder.contents import check_contents
from starling.experiment.run_folder.disk import publish
from starling.experiment.run_folder.rows import to_json
from starling.hardware import available_memory
from starling.types import Tensor

RECORD = "init_from.json"
"""File in the run's folder that lists what was taken, and what was not."""
_IN_CHECKPOINT = "learner/model/"
"""Prefix of the weights in the file `learner.safetensors` of a checkpoint."""
_WRAPPERS = ("agent.", "actor.")
"""Prefixes of an agent's network inside a larger model (curiosity, NGU, SAC)."""
SHARED = "shared"
_ACTING = ("policy", "extrinsic")
"""Heads whose trunk stands for the shared one, in order, if the other network has one trunk per head."""
_SHOWN = 12  # tensors on a line


@dataclass(frozen=True)
class InitialWeights:
    """Weights by name, and a description of where they come from."""

    source: str
    weights: Mapping[str, Tensor]
    problems: tuple[str, ...] = ()  # newer checkpoints that were skipped
    path: str = ""  # absolute


@dataclass
class Transfer:
    """What a network takes from other weights: names here -> names there, and shapes of all that does not fit."""

    taken: dict[str, str] = field(default_factory=dict)
    misfits: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)  # shapes there and here
    with_misfits: dict[str, list[int]] = field(default_factory=dict)  # they would fit, but belong to a misfit's layer
    only_here: dict[str, list[int]] = field(default_factory=dict)
    only_there: dict[str, list[int]] = field(default_factory=dict)

    def lines(self, source: str, mine: Mapping[str, Tensor]) -> list[str]:
        """Describe the transfer, one line per kind."""
        shown = {
            "taken": [_shown(name, mine[name].shape, there) for name, there in self.taken.items()],
            "not taken, of another shape": self._misfit_words(),
            "not taken, in a layer with these": [_shown(*each) for each in self.with_misfits.items()],
            "not taken, not in this network": [_shown(*each) for each in self.only_there.items()],
            "not in the source, initialized from the seed": [_shown(*each) for each in self.only_here.items()],
        }
        head = f"weights: {len(self.taken)} of {len(mine)} tensors from {source}; optimizers and counters start fresh"
        return [head, *(f"{title}: {_listed(words)}" for title, words in shown.items() if words)]

    def _misfit_words(self) -> list[str]:
        return [f"{printable(name)} {there} there, {here} here" for name, (there, here) in self.misfits.items()]

    def why_nothing_fits(self) -> str:
        """Describe in one clause why no weight could be taken."""
        if self.misfits:
            return _listed(self._misfit_words())
        there = _listed([_shown(*each) for each in self.only_there.items()]) or "nothing"
        return f"it has {there}; this network has {_listed([_shown(*each) for each in self.only_here.items()])}"

    def record(self, initial: InitialWeights) -> bytes:
        """Encode for the run's folder."""
        shapes = {name: {"there": there, "here": here} for name, (there, here) in self.misfits.items()}
        content: dict[str, Any] = {
            "path": initial.path,
            "source": initial.source,
            "taken": self.taken,
            "other_shape": shapes,
        }
        rest = {"in_their_layers": self.with_misfits, "only_there": self.only_there, "only_here": self.only_here}
        return to_json(content | rest, indent=1)


def read_weights(init_from: str, limits: checkpoint.ByteLimits) -> InitialWeights:
    """Read the weights of a run (its newest valid checkpoint), of one checkpoint, or of a safetensors file.

    Args:
        init_from: path of one of these.
        limits: largest sizes of the parts of a checkpoint.
    """
    try:
        return replace(_read(Path(init_from), limits), path=os.path.abspath(init_from))
    except OSError as error:
        raise UserError(f"cannot read init_from={init_from}: {error.strerror}") from None


def _read(path: Path, limits: checkpoint.ByteLimits) -> InitialWeights:
    if path.is_dir():
        if os.path.lexists(path / "manifest.json"):
            return _of_checkpoint(path, limits)
        return _of_run(path, checkpoint.NEWEST, limits)
    if path.parent.name == "checkpoints" and not os.path.lexists(path):  # e.g. RUN/checkpoints/best
        return _of_run(path.parent.parent, path.name, limits)
    return _of_file(path)


def _of_run(run: Path, which: str, limits: checkpoint.ByteLimits) -> InitialWeights:
    place = folder.find(run)
    chosen, state, problems = checkpoint.find(place.checkpoints, which, ("learner",), state_check("learner"), limits)
    return InitialWeights(f"{printable(run)} ({chosen.name})", state["learner"]["model"], tuple(problems))


def _of_checkpoint(path: Path, limits: checkpoint.ByteLimits) -> InitialWeights:
    check_contents(path, "a checkpoint")
    try:
        state = checkpoint.load(path, ("learner",), state_check("learner"), limits)
    except checkpoint.BrokenCheckpointError as error:
        raise UserError(f"init_from={path}: {error}") from None
    return InitialWeights(printable(path), state["learner"]["model"])


def _of_file(path: Path) -> InitialWeights:
    try:
        if path.stat().st_size > available_memory():
            raise UserError(f"init_from={path} is larger than the free memory")
        arrays = read_arrays(path)
    except ValueError as error:
        raise UserError(
            f"init_from={path} cannot be used ({printable(error)}): it must be a run, a checkpoint, or a safetensors"
            " file (safetensors.torch.save_file); pickles such as .pt are never loaded"
        ) from None
    of_checkpoint = {name.removeprefix(_IN_CHECKPOINT): array for name, array in arrays.items() if _is_weight(name)}
    return InitialWeights(
        printable(path), {name: torch.from_numpy(array) for name, array in (of_checkpoint or arrays).items()}
    )


def _is_weight(name: str) -> bool:
    return name.startswith(_IN_CHECKPOINT)


def match_weights(initial: InitialWeights, mine: Mapping[str, Tensor]) -> Transfer:
    """Decide which of the weights a network with the state `mine` takes.

    Raises:
        UserError: Nothing fits, or a weight that fits is not finite; shapes are named.
    """
    transfer, theirs = Transfer(), initial.weights
    names = _Names(theirs)
    for _, layer in groupby(mine, key=lambda name: name.rpartition(".")[0]):
        found = {name: names.find(name) for name in layer}
        if all(there is not None and _fits(theirs[there], mine[name]) for name, there in found.items()):
            transfer.taken |= {name: there for name, there in found.items() if there is not None}
            continue
        for name, there in found.items():
            shape = list(mine[name].shape)
            if there is None:
                transfer.only_here[name] = shape
            elif _fits(theirs[there], mine[name]):
                transfer.with_misfits[name] = shape
            else:
                transfer.misfits[name] = (list(theirs[there].shape), shape)
    used = {*transfer.taken.values(), *filter(None, map(names.find, (*transfer.misfits, *transfer.with_misfits)))}
    transfer.only_there = {name: list(theirs[name].shape) for name in theirs if name not in used}
    if not transfer.taken:
        raise UserError(
            f"init_from: no weights of {initial.source} fit this network: {transfer.why_nothing_fits()}; give it the"
            " same net, and an env with the same shapes"
        )
    for name, there in transfer.taken.items():
        if not bool(theirs[there].to(mine[name]).isfinite().all()):
            raise UserError(f"init_from: {printable(there)} of {initial.source} has values that are not finite")
    return transfer


def take(initial: InitialWeights, transfer: Transfer) -> dict[str, Tensor]:
    """Return the weights to take, by their names in this network."""
    return {name: initial.weights[there] for name, there in transfer.taken.items()}


def write_record(place: folder.RunFolder, initial: InitialWeights, transfer: Transfer) -> None:
    """Write what was taken to the folder of the run."""
    publish(place.path / RECORD, transfer.record(initial))


class _Names:
    """Finds the tensor of other weights that stands for one of this network: by name, or in another trunk."""

    def __init__(self, theirs: Mapping[str, Tensor]) -> None:
        self._theirs = {_unwrapped(name): name for name in theirs} | {name: name for name in theirs}
        trunks = dict.fromkeys(name.split(".")[1] for name in self._theirs if name.startswith("trunks."))
        self._separate = [*(name for name in _ACTING if name in trunks), *(name for name in trunks if name != SHARED)]

    def find(self, name: str) -> str | None:
        return next((self._theirs[each] for each in self._candidates(name) if each in self._theirs), None)

    def _candidates(self, name: str) -> Iterator[str]:
        yield name
        plain = _unwrapped(name)
        yield plain
        group, _, rest = plain.partition(".")
        trunk, _, inner = rest.partition(".")
        if group == "trunks" and inner:
            donors = self._separate if trunk == SHARED else (SHARED,)
            yield from (f"trunks.{donor}.{inner}" for donor in donors)


def _unwrapped(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in _WRAPPERS if name.startswith(prefix)), name)


def _fits(there: Tensor, here: Tensor) -> bool:
    same_kind = there.dtype == here.dtype or (there.is_floating_point() and here.is_floating_point())
    return same_kind and there.shape == here.shape


def _shown(name: str, shape: Any, there: str = "") -> str:
    return f"{printable(name)} {list(shape)}" + (f" from {printable(there)}" if there not in ("", name) else "")


def _listed(words: list[str]) -> str:
    more = f" and {len(words) - _SHOWN} more (in {RECORD})" if len(words) > _SHOWN else ""
    return f"{', '.join(words[:_SHOWN])}{more}"
