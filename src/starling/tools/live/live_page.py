"""The page of runs in progress: a report with the newest numbers at the top, built again when something has changed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace

from starling.tools.live.now import Now, now_of
from starling.tools.live.server import File
from starling.tools.live.watched import Watched
from starling.tools.report.groups import group_runs
from starling.tools.report.markup import Markup, tag
from starling.tools.report.page import Live, build_page, read_asset
from starling.tools.report.runs import Run
from starling.tools.report.videos import Video


class LivePage:
    """Finds the files of a `LiveServer`: the page, and the videos that it shows."""

    def __init__(self, watched: Watched, *, smooth: float = 0.0) -> None:
        self._watched, self._smooth = watched, smooth
        self._assets = [read_asset(name, "starling.tools.live") for name in ("live.css", "live.js")]
        self._lock = threading.Lock()
        self._version = -1
        self._files: dict[str, File] = {}

    def find(self, path: str) -> File | None:
        """Return a file by its path: "" is the page."""
        with self._lock:
            view = self._watched.view()
            if view.version != self._version:
                self._build(view.runs, [line for _, line in view.problems])
                self._version = view.version
            return self._files.get(path)

    def _build(self, runs: Sequence[Run], problems: Sequence[str]) -> None:
        files = dict[str, File]()
        shown = [replace(run, videos=tuple(_served(video, files) for video in run.videos)) for run in runs]
        style, script = self._assets
        live = Live(_now_part([now_of(run) for run in runs]), style, script)
        page = build_page(group_runs(shown), problems, smooth=self._smooth, live=live)
        self._files = {"": File(page.encode(), "text/html; charset=utf-8"), **files}


def _served(video: Video, files: dict[str, File]) -> Video:
    """Return a video that the page loads by a path of its own, which is added to `files`, instead of containing it."""
    path = f"media/{hashlib.sha256(video.content).hexdigest()[:32]}"
    files[path] = File(video.content, video.mime)
    return replace(video, url=path)


def _now_part(runs: Sequence[Now]) -> Markup:
    cards = [_card(now) for now in runs]
    waiting = tag("p", "There are no rows of metrics yet; the page shows them as they come.", class_="now")
    return tag("section", cards or waiting, id="now", aria_label="Now")


def _card(now: Now) -> Markup:
    state = tag("span", now.state, class_="going" if now.state == "in progress" else "muted")
    percent = None if now.share is None else tag("span", f"{now.share:.0%}")
    bar = None if now.share is None else tag("progress", value=round(now.share, 4), max=1, aria_label=f"{now.name}")
    return tag(
        "article",
        tag("div", tag("h2", now.name), tag("span", now.about, class_="muted"), state, percent, class_="head"),
        bar,
        tag("dl", [tag("div", tag("dt", title), tag("dd", value)) for title, value in now.facts]),
        tag("p", f"Limit: {now.limit}", class_="small muted") if now.limit else None,
        class_="now",
    )
