"""Videos and images of a run that fit into a page; the kind of a file follows from its first bytes."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path

from starling.experiment.run_folder.disk import read_bounded

MOST_BYTES, MOST_BYTES_OF_RUN = 8 * 2**20, 24 * 2**20
MOST_FILES = 12
FOLDERS = ("", "videos")
"""Folders of a run in which videos are looked for; `starling play` writes into the second."""
_SUFFIXES = (".mp4", ".webm", ".gif", ".png")
_CURVES = ("curve.png",)


@dataclass(frozen=True)
class Video:
    """A video or an image as a data URL."""

    name: str
    mime: str
    url: str

    @property
    def moves(self) -> bool:
        return self.mime.startswith("video/")

    @property
    def content(self) -> bytes:
        """Return the bytes of the file."""
        return base64.b64decode(self.url.partition(",")[2])


def videos_of(run: Path) -> tuple[list[Video], list[str]]:
    """Return the newest videos of a run, and one line for each file that was left out."""
    found, left_out, room = list[Video](), list[str](), MOST_BYTES_OF_RUN
    for number, path in enumerate(_files(run)):
        name = str(path.relative_to(run))
        if number >= MOST_FILES:
            left_out.append(f"{name}: only the newest {MOST_FILES} are shown")
            break
        try:
            content = read_bounded(path, min(room, MOST_BYTES))
        except OSError as error:
            left_out.append(f"{name}: {error.strerror}")
            continue
        mime = _mime(content)
        if mime is None:
            left_out.append(f"{name}: neither MP4, WebM, GIF, nor PNG")
            continue
        room -= len(content)
        found.append(Video(name, mime, f"data:{mime};base64,{base64.b64encode(content).decode()}"))
    return found, left_out


def _files(run: Path) -> list[Path]:
    """List files that are named like videos, the newest first."""
    found: list[tuple[float, Path]] = []
    for folder in FOLDERS:
        try:
            with os.scandir(run / folder) as entries:
                found += [
                    (-entry.stat(follow_symlinks=False).st_mtime, Path(entry.path))
                    for entry in entries
                    if entry.name.lower().endswith(_SUFFIXES)
                    and entry.name not in _CURVES
                    and entry.is_file(follow_symlinks=False)
                ]
        except OSError:
            continue
    return [path for _, path in sorted(found)]


def _mime(content: bytes) -> str | None:
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content[4:8] == b"ftyp":
        return "video/mp4"
    return "video/webm" if content.startswith(b"\x1a\x45\xdf\xa3") else None
