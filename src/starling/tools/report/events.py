"""The events of a run, from its log: starts, ends, crashes and restarts of workers, warnings, messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from starling.errors import cut
from starling.experiment.run_folder.log import LogLine

MOST_EVENTS = 200
"""Events of one run that a report shows, the last ones."""
_LONGEST = 600
_KINDS = (
    ("start", ("run: ",)),
    ("resume", ("resuming from ",)),
    ("end", ("finished: ",)),
    ("warning", ("warning: ", "checkpoint skipped: ")),
    ("failure", ("training diverged: ", "Traceback ")),
)
_FAILURES = (" died (", " lost the others", "no learner is left", " given up", "cannot write")


@dataclass(frozen=True)
class Event:
    """One message of the log; `count` times in a row, the last one at `time`."""

    time: str
    kind: str
    text: str
    count: int = 1


def events_of(lines: Iterable[LogLine]) -> tuple[list[Event], int]:
    """Return the last `MOST_EVENTS` events, repeated ones joined, and the number of earlier ones."""
    found: list[Event] = []
    for line in lines:
        event = Event(line.time, _kind(line.text), cut(line.text, _LONGEST))
        if found and (found[-1].kind, found[-1].text) == (event.kind, event.text):
            event = Event(event.time, event.kind, event.text, found[-1].count + 1)
            found.pop()
        found.append(event)
    return found[-MOST_EVENTS:], max(0, len(found) - MOST_EVENTS)


def _kind(text: str) -> str:
    """Return the kind of a message: start, resume, end, failure, warning, or message."""
    if text.startswith("finished: failed: "):
        return "failure"
    for kind, starts in _KINDS:
        if text.startswith(starts):
            return kind
    return "failure" if any(part in text for part in _FAILURES) else "message"
