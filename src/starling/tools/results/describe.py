"""Format the results as Markdown: `python -m starling.tools.results.describe > docs/benchmarks.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from starling.config.dialect import parse
from starling.config.load import merge, preset_names
from starling.tools.results.records import DEEP_SEA, DEEP_SEA_EPISODES, Result, Summary, read, summarize
from starling.tools.statistics import bootstrap_interval, interquartile_mean

FEW_SEEDS = 5
"""The caption mentions presets with fewer seeds."""
RESAMPLES = 2_000
_FAMILIES = {"ALE": "Atari (ALE)", "MinAtar": "MinAtar", "toy": "Toy problems"}
_OTHERS = "Gymnasium"
_GONE = "Removed presets"

_INTRODUCTION = f"""# Learning results

Scores of presets, generated from `src/starling/tools/results/results.jsonl` by
`python -m starling.tools.results.describe > docs/benchmarks.md`. Every line of that file is one finished run with its
seed, score, protocol, versions, machine, commit, and learning curve. `starling presets` shows the median of
each preset.

To add results, train with the queue, then generate this page again:

```
python benchmarks/run_queue.py --runs ~/runs --seeds 5 --job ppo-cartpole --job dqn-cartpole algo.double=true
python -m starling.tools.results.describe > docs/benchmarks.md
```

The queue trains one run per core, skips what is in the file, and continues what was stopped. `--evaluate 30` scores the
trained agent in 30 evaluation episodes; without it the score is the mean return of the last 100 training episodes.

The score below is the interquartile mean over seeds (IQM: the mean of the middle half), with a 95% interval of
{RESAMPLES:,} bootstrap resamples. Of fewer than four seeds the IQM is the mean. Env steps and minutes are medians;
minutes depend on the machine and on what ran beside the run (`machine` and `note` in the file).
"""


def markdown(results: Iterable[Result]) -> str:
    """Return the content of docs/benchmarks.md."""
    tables: dict[str, list[tuple[str, Summary]]] = {name: [] for name in (*_FAMILIES.values(), _OTHERS, _GONE)}
    summaries = summarize(results)
    deep_sea = [summary for summary in summaries if summary.protocol == DEEP_SEA]
    for summary in summaries:
        if summary.protocol == DEEP_SEA:
            continue
        env = env_of(summary)
        family = _GONE if env is None else _FAMILIES.get(env.partition("/")[0], _OTHERS)
        tables[family].append((env or "unknown", summary))
    parts = [_INTRODUCTION, *(_table(family, rows) for family, rows in tables.items() if rows)]
    return "\n".join([*parts, *([_deep_sea_table(deep_sea)] if deep_sea else [])])


def env_of(summary: Summary) -> str | None:
    """Return the env id from the overrides or the preset; None if the preset no longer exists."""
    named = [value for key, value in map(_halves, summary.overrides) if key == "env.id"]
    if named:
        return named[-1]
    if summary.preset not in preset_names():
        return None
    settings, _ = merge(summary.preset, [])
    return str(settings.values["env"]["id"])


def _table(family: str, rows: list[tuple[str, Summary]]) -> str:
    """Format the table of one family, with a caption about protocols and rows with few seeds."""
    rows = sorted(rows, key=lambda row: (row[0], row[1].preset, row[1].overrides))
    protocols = list(dict.fromkeys(summary.protocol for _, summary in rows))
    caption = [f"Score: {'; '.join(f'({i}) {text}' for i, text in enumerate(protocols, 1))}."]
    few = [f"`{summary.preset}` ({summary.seeds})" for _, summary in rows if summary.seeds < FEW_SEEDS]
    if few:
        caption.append(f"**Fewer than {FEW_SEEDS} seeds**, so that intervals are too narrow: {', '.join(few)}.")
    lines = [
        f"## {family}", "", *caption, "",
        "| env | preset | seeds | env steps | minutes | IQM (95% interval) | protocol | date | overrides |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [_row(env, summary, protocols.index(summary.protocol) + 1) for env, summary in rows]
    return "\n".join([*lines, ""])


def _deep_sea_table(summaries: list[Summary]) -> str:
    """Format the table of deep sea: one line per agent, one column per size, the median over seeds in each cell."""
    cells: dict[str, dict[int, Summary]] = {}
    for summary in summaries:
        size, agent = _deep_sea_agent(summary)
        cells.setdefault(agent, {})[size] = summary
    sizes = sorted({size for by_size in cells.values() for size in by_size})
    seeds = sorted({summary.seeds for summary in summaries})
    lines = [
        "## Deep sea", "",
        f"Score: {DEEP_SEA}. Seeds per cell: {', '.join(map(str, seeds))} (median). Protocol and action mapping are"
        " those of bsuite; `benchmarks/deep_sea.py` runs it.", "",
        f"| agent | {' | '.join(map(str, sizes))} | solved |",
        f"|---|{'---|' * (len(sizes) + 1)}",
    ]  # fmt: skip
    for agent, by_size in cells.items():
        solved = [size for size, summary in by_size.items() if summary.score < DEEP_SEA_EPISODES]
        shown = [_episodes(by_size.get(size)) for size in sizes]
        lines.append(f"| {agent} | {' | '.join(shown)} | {len(solved)} of {len(by_size)} |")
    return "\n".join([*lines, ""])


def _deep_sea_agent(summary: Summary) -> tuple[int, str]:
    """Return the size of a run's env, and its agent: the preset with the overrides that do not depend on the size."""
    arguments = next(value for key, value in map(_halves, summary.overrides) if key == "env.args")
    size = int(parse(arguments, "env.args")["size"])
    lengths = {str(size), str(size * DEEP_SEA_EPISODES)}
    kept = [f"`{o}`" for o in summary.overrides if _halves(o)[0] != "env.args" and _halves(o)[1] not in lengths]
    return size, " ".join([f"`{summary.preset}`", *kept])


def _halves(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key, value


def _episodes(summary: Summary | None) -> str:
    if summary is None:
        return ""
    return f"{summary.score:,.0f}" if summary.score < DEEP_SEA_EPISODES else "no"


def _row(env: str, summary: Summary, protocol: int) -> str:
    overrides = " ".join(f"`{override}`" for override in summary.overrides)
    minutes = "" if summary.minutes is None else f"{summary.minutes:.1f}"
    cells = [env, f"`{summary.preset}`", str(summary.seeds), f"{summary.env_steps:,}", minutes]
    cells += [_score(summary.scores), f"({protocol})", summary.date, overrides]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _score(scores: tuple[float, ...]) -> str:
    """Format the interquartile mean and, with several seeds, its interval."""
    middle = _number(interquartile_mean(scores))
    if len(scores) == 1:
        return middle
    low, high = bootstrap_interval(
        interquartile_mean, scores, rng=np.random.default_rng(0), resamples=RESAMPLES, confidence=0.95
    )
    return f"{middle} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.2f}"


if __name__ == "__main__":
    sys.stdout.write(markdown(read()))
