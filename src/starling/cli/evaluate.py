"""`starling eval`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the environments.")] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on the last line.")] = False,
) -> None:
    """Play a run's newest agent without exploration: `starling eval runs/NAME --episodes 100 --json`."""
    from starling.runs.folder import find

    find(run)

    from starling.evaluation import evaluate_run

    result = evaluate_run(run, episodes=episodes, seed=seed, warn=lambda line: print(line))
    if as_json:
        print(json.dumps(result))
    else:
        print("mean {mean:.2f}  median {median:.2f}  std {std:.2f}  over {episodes} episodes".format(**result))
