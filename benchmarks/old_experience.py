"""Value of old experience: returns on MinAtar Breakout with every way to replay it, five seeds each.

It takes hours and can be interrupted at any time; see curves.py.

    python benchmarks/old_experience.py [--seeds 5] [--env-steps 300000] [--only "elite 0.5"] [--draw-only] [--json]
"""

from __future__ import annotations

from curves import Study, main

UNIFORM = "algo.sources=[{kind: queue, share: 0.5}, {kind: uniform, share: 0.5, capacity: 1000}]"
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "queue only": ("impala-minatar-breakout", []),
    "uniform 0.5": ("impala-minatar-breakout", ["algo.batch=16", UNIFORM]),
    "attentive 0.5": ("impala-attentive-minatar-breakout", []),
    "elite 0.5": ("impala-elite-minatar-breakout", []),
    "CLEAR": ("impala-clear-minatar-breakout", []),
    "LASER 7/8": ("impala-laser-minatar-breakout", []),
    "IMPACT": ("impact-minatar-breakout", []),
}
"""All use 8 new fragments of 20 steps per update, so all but IMPACT have the same number of updates per env step."""

if __name__ == "__main__":
    main(Study("old_experience", "MinAtar Breakout", __doc__, VARIANTS))
