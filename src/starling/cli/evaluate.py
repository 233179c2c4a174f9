"""`starling eval`"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from starling.cli.arguments import Allow, AsJson, Checkpoint, Run
from starling.cli.show import say
from starling.errors import UserError

MOST_SEEDS = 10_000


def evaluate(
    run: Run,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 20,
    seed: Annotated[
        str, typer.Option(metavar="N|N-M", help="Seed of the environments, or a range: all episodes with each seed.")
    ] = "1000000",
    checkpoint: Checkpoint = "newest",
    protocol: Annotated[
        str, typer.Option(help="as-trained; for ALE also noop (up to 30 no-ops) and sticky (25% sticky actions).")
    ] = "as-trained",
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample actions from the policy, as in training; else the likeliest.")
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Chance of a random action, for Q-learning.", show_default="algo.eval_epsilon"),
    ] = None,
    video: Annotated[
        Path | None,
        typer.Option(
            help="Record the first environment's games as they are scored: out.mp4 or out.gif.", show_default="no video"
        ),
    ] = None,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's agent: without exploration, or with the protocol of a published score.

    Papers differ: most Atari scores use an epsilon of 0.001 to 0.05 for Q-learning, and sampled actions for policy
    gradients.

    Example: starling eval runs/mine --episodes 20 --seed 0-4 --json
    """
    seeds = _seeds(seed)
    from starling.experiment.run_folder.folder import find

    find(run, allow or ()).config()  # reports errors before torch is imported

    if video is not None:
        from starling.tools.video import check_folder, check_video

        check_video(video, None)
        check_folder(video)

    from starling.tools.evaluate import evaluate_run

    result = evaluate_run(
        run,
        episodes=episodes,
        seed=seeds,
        which=checkpoint,
        protocol=protocol,
        warn=say,
        sample=sample,
        epsilon=epsilon,
        allow=allow or (),
        video=video,
    )
    say(
        "mean {mean:.2f} (95% {ci95[0]:.2f} to {ci95[1]:.2f})  median {median:.2f}  std {std:.2f}  "
        "{episodes} episodes, {env}, {protocol}, {actions}, {checkpoint}".format(**result)
    )
    for number in seeds:
        returns = [total for total, of in zip(result["returns"], result["seeds"], strict=True) if of == number]
        say(f"seed {number}: {' '.join(f'{total:g}' for total in returns)}")
    if video is not None:
        say(f"wrote {video}")
    if as_json:
        print(json.dumps(result))


def _seeds(text: str) -> range:
    """Parse a seed or a range of seeds, both ends included."""
    found = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text)
    seeds = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
    if not 0 < len(seeds) <= MOST_SEEDS:
        raise UserError(f"--seed {text} is neither a seed, such as 7, nor a range of up to {MOST_SEEDS:,}, such as 0-9")
    return seeds
