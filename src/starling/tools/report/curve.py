"""The learning curve that a finished run leaves in its folder, `curve.png`; a run never fails because of it.

It is drawn with matplotlib where that is installed, after the run has been saved and its workers are gone.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from starling.errors import cut
from starling.experiment.run_folder.disk import publish
from starling.experiment.run_folder.rows import Rows
from starling.tools.report.columns import read_table
from starling.tools.report.curves import Curve, Line

NAME = "curve.png"
KEYS = (("return", "training, last 100 episodes"), ("eval/return", "evaluation"))
"""Keys of the curve, with their labels."""


def write_curve(run: Path, title: str) -> Path | None:
    """Draw the returns of a run into its folder.

    Args:
        run: folder of the run.
        title: title of the image.

    Returns:
        The file; None without matplotlib, or if there is nothing to draw or no way to write it.
    """
    if find_spec("matplotlib") is None:
        return None
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the first import may say that it looks for fonts
    try:
        return _write(run, title)
    except Exception:  # whatever it is: the run itself is saved
        return None
    finally:
        logger.setLevel(level)


def _write(run: Path, title: str) -> Path | None:
    from starling.tools.report.png import draw

    columns = read_table(Rows(run / "metrics.jsonl")).columns
    curves = []
    for number, (key, label) in enumerate(KEYS):
        if key not in columns:
            continue
        steps, _, values = columns[key].points()
        known = np.isfinite(values)
        if known.any():
            curves.append(Curve(number, label, (("", Line(steps[known], values[known])),)))
    if not curves or max(len(curve.runs[0][1].x) for curve in curves) < 2:
        return None
    file = run / NAME
    publish(file, draw(curves, "steps", title=cut(title, 90), unit="return"))
    return file
