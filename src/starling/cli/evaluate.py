"""`starling eval`"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from starling.cli.arguments import Allow, AsJson, Checkpoint, Run
from starling.cli.show import say


def evaluate(
    run: Run,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the environments.")] = 1_000_000,
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
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's agent: without exploration, or with the protocol of a published score.

    Papers differ: most Atari scores use an epsilon of 0.001 to 0.05 for Q-learning, and sampled actions for policy
    gradients.

    Example: starling eval runs/mine --episodes 100 --json
    """
    from starling.experiment.run_folder.folder import find

    find(run, allow or ()).config()  # reports errors before torch is imported

    from starling.tools.evaluate import evaluate_run

    result = evaluate_run(
        run,
        episodes=episodes,
        seed=seed,
        which=checkpoint,
        protocol=protocol,
        warn=say,
        sample=sample,
        epsilon=epsilon,
        allow=allow or (),
    )
    say(
        "mean {mean:.2f} (95% {ci95[0]:.2f} to {ci95[1]:.2f})  median {median:.2f}  std {std:.2f}  "
        "{episodes} episodes, {env}, {protocol}, {actions}, {checkpoint}".format(**result)
    )
    if as_json:
        print(json.dumps(result))
