"""`starling doctor`"""

from __future__ import annotations

import json

import typer

from starling.cli.arguments import AsJson, Run
from starling.cli.show import say


def doctor(run: Run, as_json: AsJson = False) -> None:
    """Say what is wrong with a run, live or dead: the likely cause, and what to change.

    It looks at the process, who waits for whom, restarts, stale weights, the ledger of env steps, and verifies the
    checkpoints. It only reads. The exit code is 1 if there is a problem.

    Example: starling doctor runs/mine
    """
    from dataclasses import asdict

    from starling.experiment.doctor import examine
    from starling.experiment.run_folder.folder import find

    place = find(run)
    findings = examine(place)
    problems = [finding for finding in findings if finding.is_problem]

    def named(text: str | None) -> str:
        return (text or "").replace("RUN", str(place.path))

    if as_json:
        print(json.dumps([asdict(finding) | {"problem": finding.is_problem} for finding in findings]))
        raise typer.Exit(bool(problems))
    for finding in findings:
        say(f"{'PROBLEM' if finding.is_problem else 'ok':8}{finding.about:12}{finding.what}")
        if finding.is_problem and finding is not problems[0]:
            say(f"{'':20}cause: {finding.cause}; change: {named(finding.change)}")
    if problems:
        say(f"likely cause: {problems[0].cause}")
        say(f"what to do:   {named(problems[0].change)}")
    else:
        say("nothing is wrong")
    raise typer.Exit(bool(problems))
