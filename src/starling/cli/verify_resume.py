"""`starling verify-resume`"""

from __future__ import annotations

from typing import Annotated

import typer

from starling.cli.arguments import Allow, Overrides, Source


def verify_resume(
    source: Source,
    overrides: Overrides = None,
    steps: Annotated[
        int, typer.Option(min=1, help="N: env steps before and after the kill, or updates if stop has no others.")
    ] = 5000,
    allow: Allow = None,
) -> None:
    """Prove that N steps, kill -9, resume, and N more steps equal 2N steps.

    With runtime=inline it sets checkpoint.exact=true and compares every byte; with the others, every counter.

    Example: starling verify-resume dqn-cartpole --steps 2000
    """
    from starling.cli.precheck import load_source

    config = load_source(source, overrides or [], allow)

    from starling.tools.verify import count_of, to_the_bit, verify

    differences = verify(source, overrides or [], steps, say=print, words=allow or [])
    if differences:
        for line in differences:
            print(f"DIFFERENT: {line}")
        raise typer.Exit(1)
    unit = "steps" if count_of(config) == "env steps" else "updates"
    how = "equal bit for bit" if to_the_bit(config) else "every counter adds up"
    print(f"{how}: {steps:,} {unit} + kill -9 + resume + {steps:,} {unit} = {2 * steps:,} {unit} in one run")
