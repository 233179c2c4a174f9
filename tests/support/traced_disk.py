"""A disk for `experiment.run_folder.disk` that records every operation, and the states that a crash may leave."""

import errno
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from starling.experiment.run_folder import disk


class TracedDisk:
    """Stands in for `os` in `experiment.run_folder.disk`: records all changes and passes them on.

    With `room`, a write fails as on a full disk once that many bytes were written.
    """

    def __init__(self, monkeypatch=None, room=None):
        self.operations = []
        self.room = room
        self._files = {}
        if monkeypatch is None:
            disk.os = self
        else:
            monkeypatch.setattr(disk, "os", self)

    def __getattr__(self, name):
        return getattr(os, name)

    def before(self, kind, path):
        """Called before an operation; may raise to prevent it."""

    def _done(self, *operation):
        self.operations.append(operation)

    def open(self, path, flags, mode=0o777):
        is_new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        if is_new:
            self.before("create", path)
        descriptor = os.open(path, flags, mode)
        self._files[descriptor] = str(path)
        if is_new:
            self._done("create", str(path))
        elif flags & os.O_TRUNC:
            self._done("truncate", str(path), 0)
        return descriptor

    def write(self, descriptor, content):
        self.before("write", self._files[descriptor])
        if self.room is not None:
            content = content[: self.room]
            if not len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= len(content)
        written = os.write(descriptor, content)
        self._done("write", self._files[descriptor], bytes(content[:written]))
        return written

    def ftruncate(self, descriptor, size):
        self.before("truncate", self._files[descriptor])
        os.ftruncate(descriptor, size)
        self._done("truncate", self._files[descriptor], size)

    def fsync(self, descriptor):
        self.before("sync", self._files[descriptor])
        os.fsync(descriptor)
        self._done("sync", self._files[descriptor])

    def close(self, descriptor):
        del self._files[descriptor]
        os.close(descriptor)

    def mkdir(self, path):
        self.before("mkdir", path)
        os.mkdir(path)
        self._done("mkdir", str(path))

    def replace(self, source, target):
        self.before("rename", source)
        os.replace(source, target)
        self._done("rename", str(source), str(target))

    def unlink(self, path):
        self.before("unlink", path)
        os.unlink(path)
        self._done("unlink", str(path))

    def rmdir(self, path):
        self.before("rmdir", path)
        os.rmdir(path)
        self._done("rmdir", str(path))


@dataclass(eq=False)
class File:
    """Content as programs see it, and the part that is guaranteed to be on the disk."""

    live: bytes = b""
    synced: bytes = b""

    def partial(self):
        return self.live[: max(len(self.synced), len(self.live) // 2)]


@dataclass(eq=False)
class Folder:
    """Entries that are guaranteed to be on the disk, and later changes, which reach it in this order or not at all."""

    synced: dict = field(default_factory=dict)
    pending: list = field(default_factory=list)

    def entries(self, changes=None):
        found = dict(self.synced)
        for kind, name, other in self.pending[:changes]:
            if kind == "link":
                found[name] = other
            elif kind == "unlink":
                found.pop(name, None)
            elif name in found:
                found[other] = found.pop(name)
        return found


class CrashModel:
    """Replays operations below `base` and gives the possible contents of the disk after a power failure.

    Content that was not synced may be there, in part, or not at all. The same holds for changes to the entries of each
    folder, except that a later change of a folder never appears without the earlier ones.
    """

    def __init__(self, base):
        self.base, self.root = Path(base), Folder()

    def _find(self, path):
        node = self.root
        for part in Path(path).relative_to(self.base).parts:
            node = node.entries()[part]
        return node

    def apply(self, kind, path, *rest):
        path = Path(path)
        folder, node = (None, self.root) if path == self.base else (self._find(path.parent), None)
        if kind in ("create", "mkdir"):
            folder.pending.append(("link", path.name, File() if kind == "create" else Folder()))
        elif kind in ("unlink", "rmdir"):
            folder.pending.append(("unlink", path.name, None))
        elif kind == "rename":
            assert Path(rest[0]).parent == path.parent
            folder.pending.append(("rename", path.name, Path(rest[0]).name))
        else:
            node = node or self._find(path)
            if kind == "write":
                node.live += rest[0]
            elif kind == "truncate":
                node.live = node.live[: rest[0]]
            elif isinstance(node, Folder):
                node.synced, node.pending = node.entries(), []
            else:
                node.synced = node.live

    def left(self, *, entries, content):
        """The remaining files and folders (path -> content; None for a folder) with these entries and this content."""
        return dict(self._left(self.root, Path(), entries, content))

    def _left(self, node, path, entries, content):
        if isinstance(node, File):
            yield path, content(node)
            return
        yield path, None
        for name, child in node.entries(entries(node)).items():
            yield from self._left(child, path / name, entries, content)


def write_tree(target, tree):
    """Create the files and folders that `CrashModel.left` describes."""
    for path, content in tree.items():
        if content is None:
            (target / path).mkdir()
        else:
            (target / path).write_bytes(content)


def read_tree(folder):
    """Describe a folder in the form of `CrashModel.left`."""
    paths = [folder, *folder.rglob("*")]
    return {path.relative_to(folder): None if path.is_dir() else path.read_bytes() for path in paths}


def crashes(rng: random.Random):
    """Arguments of `CrashModel.left`: the worst case, the best case, and some in between."""
    yield {"entries": lambda folder: 0, "content": lambda file: file.synced}
    yield {"entries": lambda folder: None, "content": lambda file: file.synced}
    yield {"entries": lambda folder: None, "content": lambda file: file.live}
    for _ in range(2):
        yield {
            "entries": lambda folder: rng.randint(0, len(folder.pending)),
            "content": lambda file: rng.choice([file.synced, file.live, file.partial()]),
        }
