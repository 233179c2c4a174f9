"""Format the reference of all metrics as Markdown: `python -m starling.tools.metrics_reference > docs/metrics.md`."""

from __future__ import annotations

import sys
import textwrap

from starling.experiment.run_folder.metric_keys import PLACEHOLDERS, SECTIONS, Metric, Section

WIDTH = 120
"""Characters per line of text."""

_INTRODUCTION = """# Metrics

Every key of `metrics.jsonl`, generated from `src/starling/experiment/run_folder/metric_keys.py` by
`python -m starling.tools.metrics_reference > docs/metrics.md`.

A run writes a row every `log.every` (by default a hundredth of the run), after every evaluation, and
at its end. A row is one line of `metrics.jsonl` in the run's folder: a flat JSON object. Its numbers are also written
as TensorBoard scalars of the same names, with `env_steps` as their step.

```
starling metrics runs/mine                 # the last rows as a table: counts, scores, losses, speed
starling metrics runs/mine --keys          # what each key of this run means
starling metrics runs/mine --csv mine.csv  # all rows and all keys
tensorboard --logdir runs
```

- A value that is NaN or infinite is `null` in `metrics.jsonl`; so is `return` before the first episode has ended.
- A key is missing if it does not apply to the run, or if there was nothing to measure since the last row.
- With `runtime=inline`, only keys under `time/` depend on the machine; all others follow from configuration and seed.
- The column *when* names algorithms, runtimes (`processes`, `ray`), and settings. *Worker processes* are those of both.
- Capitalized names are placeholders:

| placeholder | stands for |
|---|---|
"""


def markdown() -> str:
    """Return the content of docs/metrics.md."""
    names = [f"| {name} | {meaning} |\n" for name, (_, meaning) in PLACEHOLDERS.items()]
    return "\n".join([_INTRODUCTION + "".join(names), *map(_table, SECTIONS)])


def _table(section: Section) -> str:
    about = textwrap.fill(section.about, WIDTH, break_long_words=False, break_on_hyphens=False)
    head = [f"## {section.title}", "", about, "", "| key | unit | when | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_row, section.metrics), ""])


def _row(metric: Metric) -> str:
    cells = (f"`{metric.key}`", metric.unit.name, metric.when, metric.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
