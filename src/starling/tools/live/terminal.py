"""The newest numbers of runs in a terminal, redrawn as they change."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from starling.errors import UserError, escaped
from starling.tools.live.now import Now, now_of
from starling.tools.live.watched import EVERY, View, Watched

_BARS = " ▁▂▃▄▅▆▇█"
_CELL = 30  # characters of a column of facts


def show(watched: Watched, console: Console) -> None:
    """Draw runs until Ctrl-C.

    Raises:
        UserError: the output is no terminal.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        raise UserError("--tui needs a terminal that can be redrawn; starling metrics RUN prints the last rows")
    with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        drawn: tuple[int, object] | None = None
        while True:
            view = watched.view()
            if drawn != (view.version, console.size):
                live.update(draw(view, console.width), refresh=True)
                drawn = (view.version, console.size)
            time.sleep(EVERY)


def draw(view: View, width: int) -> RenderableType:
    """Return what a terminal of this width shows."""
    parts: list[RenderableType] = [_panel(now_of(run), width - 4) for run in view.runs]
    parts += [Text(f"{name}: {escaped(problem)}", "yellow") for name, problem in view.problems]
    if not parts:
        parts.append(Text("looking for runs"))
    return Group(*parts, Text("Ctrl-C ends", "dim"))


def _panel(now: Now, width: int) -> Panel:
    state = Text(escaped(now.state), "green" if now.state == "in progress" else "yellow")
    parts: list[RenderableType] = [Text.assemble((escaped(now.about), "dim"), "   ", state)]
    if now.share is not None:
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right")
        bar.add_row(ProgressBar(total=1.0, completed=now.share), f"{now.share:.0%}")
        parts.append(bar)
    parts.append(_facts(now, max(1, width // _CELL)))
    if len(now.returns) > 1:
        parts.append(Text.assemble(("Return  ", "dim"), (sparkline(now.returns[-max(1, width - 8) :]), "cyan")))
    if now.limit:
        parts.append(Text.assemble(("Limit   ", "dim"), escaped(now.limit), overflow="ellipsis", no_wrap=True))
    return Panel(Group(*parts), title=Text(escaped(now.name), "bold"), title_align="left")


def _facts(now: Now, columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(columns):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True)
    for i in range(0, len(now.facts), columns):
        table.add_row(*(Text(escaped(text)) for fact in now.facts[i : i + columns] for text in fact))
    return table


def sparkline(values: Sequence[float]) -> str:
    """Draw values as one character each, from their least to their largest; a space for what is not finite."""
    known = [value for value in values if value - value == 0]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    return "".join(
        _BARS[1 + round(7 * (value - low) / span)] if span and value - value == 0 else _BARS[4 * (value - value == 0)]
        for value in values
    )
