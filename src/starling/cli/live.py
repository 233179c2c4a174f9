"""`starling watch`"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from starling.cli.report import Runs
from starling.cli.show import say

if TYPE_CHECKING:
    from starling.tools.live.watched import Watched


def watch(
    runs: Runs,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of 127.0.0.1 to listen on.", show_default="a free one")
    ] = 0,
    tui: Annotated[bool, typer.Option("--tui", help="Show the newest numbers in this terminal instead.")] = False,
    smooth: Annotated[float, typer.Option(min=0, max=0.99, help="Smoothing of the curves at first.")] = 0.0,
) -> None:
    """Show runs while they train: the page of `starling report`, kept up to date, or the numbers in the terminal.

    The page is served to this machine only, at an address with a secret token. Runs may be waiting for their first row,
    in progress, or finished; nothing of theirs is imported or changed. Ctrl-C ends it.

    Example: starling watch runs/mine runs/other
    """
    from starling.tools.live.watched import Watched

    watched = Watched(runs)
    if tui:
        _in_terminal(watched)
    else:
        _serve(watched, port, smooth)


def _in_terminal(watched: Watched) -> None:
    from rich.console import Console

    from starling.tools.live.terminal import show

    with suppress(KeyboardInterrupt):
        show(watched, Console())


def _serve(watched: Watched, port: int, smooth: float) -> None:
    from starling.tools.live.live_page import LivePage
    from starling.tools.live.server import LiveServer

    with LiveServer(LivePage(watched, smooth=smooth).find, port) as server, suppress(KeyboardInterrupt):
        for name, problem in watched.view().problems:
            say(f"waiting for {name}: {problem}")
        print(f"watching at {server.url} (only from this machine; Ctrl-C ends)", flush=True)
        server.serve_forever()
