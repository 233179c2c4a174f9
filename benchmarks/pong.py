"""Agent steps per second on Pong (84x84x4, an action for 4 frames, Nature CNN, no evaluation): Starling and its peers.

Three contests: `impala` uses each step once; `ppo` has 8 envs x 128 steps and 4 epochs x 4 minibatches; `dqn` has an
update of 32 transitions every 4 steps. Every contestant is a separate process with both cores and the best settings
that were found for it on two cores; they take turns, and each is warmed up before it is measured. The result is the
ratio.

    make bench-pong-install && .venv-bench/bin/python benchmarks/pong.py --repeat 3 --json
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import describe, spread

HERE = Path(__file__).resolve().parent
PYTHONPATH = os.pathsep.join([str(HERE), str(HERE.parent / "src")])  # the peers' environments do not contain starling
OURS = "starling"
GRACE = 300.0
"""Seconds allowed for start, warm-up, and end; some peers hang when one of their processes has failed."""


@dataclass(frozen=True)
class Contestant:
    """A command to measure; its last line is JSON with `steps_per_s`."""

    name: str
    python: Path
    arguments: tuple[str, ...]

    def command(self, seconds: float) -> list[str]:
        return [str(self.python), *self.arguments, "--seconds", str(seconds)]


class MissingError(Exception):
    """The reason why a contestant cannot be measured here."""


BEST = {
    "impala": (),
    # Acts while it learns, with a lag of one batch.
    "ppo": ("runtime=processes", "actors=1", "threads=2", "algo.max_lag=1"),
    "dqn": ("threads=2", "algo.double=false"),  # the peers' DQN is not double either
}
"""Overrides of Starling's preset for each contest."""


def ours(contest: str) -> Contestant:
    settings = ("precision=float32", *BEST[contest])  # the peers' precision
    arguments = ("-m", "starling", "bench", "throughput", *settings, "--preset", f"{contest}-pong", "--json")
    return Contestant(OURS, Path(sys.executable), arguments)


def peer(name: str, contest: str, venv: str) -> Contestant:
    script = HERE / "peers" / f"run_{name.replace('-', '_')}.py"
    return Contestant(name, HERE.parent / venv / "bin" / "python", (str(script), contest))


CONTESTS = {
    "impala": (peer("sample-factory", "impala", ".venv-sf"), peer("rllib", "impala", ".venv-rllib")),
    "ppo": (peer("stable-baselines3", "ppo", ".venv-bench"), peer("sample-factory", "ppo", ".venv-sf")),
    "dqn": (peer("stable-baselines3", "dqn", ".venv-bench"),),
}


def run(contestant: Contestant, seconds: float) -> dict[str, Any]:
    """The JSON on the contestant's last line; it gets a temporary home, since some peers leave files there."""
    if not contestant.python.exists():
        raise MissingError(f"{contestant.python} does not exist: make bench-pong-install")
    with tempfile.TemporaryDirectory(prefix="pong-", ignore_cleanup_errors=True) as home:
        env = os.environ | {"HOME": home, "RAY_TMPDIR": home, "PYTHONPATH": PYTHONPATH}
        process = subprocess.Popen(
            contestant.command(seconds), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home, env=env,
            start_new_session=True,
        )  # fmt: skip
        stdout, stderr = _wait(process, seconds + GRACE)
    return _last_line(stdout, stderr, process.returncode)


def _wait(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"no result after {seconds:.0f} s") from error
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End all processes that the contestant left running."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(stdout: str, stderr: str, code: int) -> dict[str, Any]:
    if code:
        raise MissingError((stderr.strip() or stdout.strip() or f"exit code {code}").splitlines()[-1])
    found: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
    return found


@dataclass
class Score:
    """Results of a contestant in all rounds, or why it has none."""

    rounds: list[dict[str, Any]]
    missing: str | None = None

    def play(self, contest: str, contestant: Contestant, seconds: float) -> None:
        if self.missing:
            return
        try:
            self.rounds.append(run(contestant, seconds))
            print(f"{contest}: {contestant.name} {self.rates[-1]:,.0f} steps/s", flush=True)
        except MissingError as error:
            self.missing = str(error)
            print(f"{contest}: {contestant.name} is left out: {error}", flush=True)

    @property
    def rates(self) -> list[float]:
        return [float(found["steps_per_s"]) for found in self.rounds]


def summary(scores: dict[str, Score]) -> dict[str, Any]:
    """Spreads in one contest, and the ratio of Starling's speed to each peer's, round by round."""
    mine = scores[OURS].rates
    report: dict[str, Any] = {}
    for name, score in scores.items():
        if score.missing:
            report[name] = {"missing": score.missing}
            continue
        last = score.rounds[-1]
        report[name] = {key: last[key] for key in ("settings", "versions") if key in last}
        report[name]["steps_per_s"] = spread(score.rates)
        if name != OURS and not scores[OURS].missing:
            report[name]["ratio"] = spread([a / b for a, b in zip(mine, score.rates, strict=True)])
    return report


def line(contest: str, name: str, result: dict[str, Any]) -> str:
    """One contestant as text: medians, and the extremes in brackets."""
    if "missing" in result:
        return f"{contest:7} {name:15} missing: {result['missing']}"
    shown = [
        f"{label} {result[key]['median']:.2f} [{result[key]['low']:.2f}, {result[key]['high']:.2f}]"
        for key, label in (("steps_per_s", "steps/s"), ("ratio", "ours/peer"))
        if key in result
    ]
    return f"{contest:7} {name:15} {', '.join(shown)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each measurement")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--only", choices=CONTESTS, help="one contest")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    contests = {name: (ours(name), *CONTESTS[name]) for name in ([args.only] if args.only else CONTESTS)}
    scores = {name: {one.name: Score([]) for one in contestants} for name, contestants in contests.items()}
    for _ in range(args.repeat):
        for name, contestants in contests.items():
            for one in contestants:
                scores[name][one.name].play(name, one, args.seconds)
    results = {name: summary(found) for name, found in scores.items()}
    for name, found in results.items():
        for contestant, result in found.items():
            print(line(name, contestant, result))
    if args.json:
        settings = {"seconds": args.seconds, "repeat": args.repeat}
        print(json.dumps({**describe("starling-rl", "torch", "numpy"), "settings": settings, "contests": results}))


if __name__ == "__main__":
    main()
