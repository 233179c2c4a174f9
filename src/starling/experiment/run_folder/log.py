"""Read `log.txt` of a run: lines with the time at which they were written. Does not import torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from starling.experiment.run_folder.disk import open_regular

MOST_BYTES = 2**22
"""Bytes that are read of a log, the last ones."""
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?) (.*)")


@dataclass(frozen=True)
class LogLine:
    """One message, with the lines of a traceback that follow it."""

    time: str
    text: str


def read_log(file: Path) -> str:
    """Return the last `MOST_BYTES` of a log, without a line that is cut off; empty if it cannot be read."""
    try:
        with open(open_regular(file, os.O_RDONLY), "rb") as handle:
            start = max(0, os.fstat(handle.fileno()).st_size - MOST_BYTES)
            handle.seek(start)
            content = handle.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return content.partition("\n")[2] if start else content


def log_lines(text: str) -> list[LogLine]:
    """Split a log into messages; lines without a time belong to the message before them."""
    found: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        stamped = _STAMP.fullmatch(line)
        if stamped is not None:
            found.append((stamped[1], [stamped[2]]))
        elif found and line:
            found[-1][1].append(line)
    return [LogLine(stamp, "\n".join(parts)) for stamp, parts in found]
