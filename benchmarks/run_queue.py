"""Train presets over several seeds, one run per core, and record every finished run in the results file.

It takes hours and can be interrupted at any time: Ctrl-C saves all runs (a second one exits at once), and the same
command continues them. Runs that are already in the results file are skipped. Exit code: 0, also after Ctrl-C; 1 if a
run failed; 2 for invalid input; 143 after SIGTERM.

    python benchmarks/run_queue.py --runs ~/runs --seeds 5 --job ppo-cartpole --job dqn-cartpole algo.double=true
    python benchmarks/run_queue.py jobs.yaml --runs ~/runs --evaluate 30

jobs.yaml is a list:

    - {preset: ppo-cartpole, overrides: [stop.env_steps=50000], seeds: 5}  # seeds 0 to 4
    - {preset: dqn-cartpole, seeds: [3, 7]}
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from machine import describe

from starling.cli.precheck import load_checked
from starling.config.dialect import parse
from starling.config.load import differences, load, preset_names, to_dict
from starling.errors import UserError, did_you_mean
from starling.experiment.run_folder.folder import RunFolder
from starling.process_exit import ENDING, heeded
from starling.tools.results.from_run import (
    end_of,
    is_finished,
    learning_curve,
    rows_of,
    training_minutes,
    training_score,
)
from starling.tools.results.records import FILE, Result, append, read

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("starling-rl", "torch", "numpy", "gymnasium", "ale-py", "minatar", "mujoco")
STARTS = {"as-trained": "", "noop": ", no-op starts", "sticky": ", sticky actions"}
"""Protocols of `starling eval` -> their names in a result."""
POLL_SECONDS = 0.1

Steps = Generator[list[str], int, None]
"""The commands of one job; each is sent its exit code."""


@dataclass(frozen=True)
class Job:
    """One run."""

    preset: str
    overrides: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        """Name of the run's folder, determined by the job."""
        digest = hashlib.sha256("\n".join(self.overrides).encode()).hexdigest()[:8]
        return f"{self.preset}{f'-{digest}' if self.overrides else ''}-seed{self.seed}"

    def __str__(self) -> str:
        return " ".join([self.preset, *self.overrides, f"seed={self.seed}"])


class Queue:
    """Runs jobs as `starling train` processes, at most `limit` at the same time.

    Every process has its own session, so that Ctrl-C in a terminal reaches it once, through this process.
    """

    def __init__(self, jobs: list[Job], runs: Path, results: Path, limit: int, evaluate: int, protocol: str) -> None:
        self.runs, self.results, self.limit = runs, results, limit
        self.evaluate, self.protocol = evaluate, protocol
        done = {result.job for result in read(results)}
        self._waiting = [job for job in jobs if (job.preset, job.overrides, job.seed) not in done]
        self._running: dict[subprocess.Popen[bytes], tuple[Job, Steps]] = {}
        self._received: list[signal.Signals] = []
        self._forwarded = 0
        self.skipped, self.recorded, self.unfinished = len(jobs) - len(self._waiting), 0, 0

    def run(self) -> int:
        """Work until all jobs are done or a signal has stopped them; returns the exit code."""
        print(f"{len(self._waiting)} runs to do, {self.skipped} recorded already; at most {self.limit} at once")
        with self._signals(), self._ending_processes():
            while self._running or (self._waiting and not self._received):
                while self._waiting and len(self._running) < self.limit and not self._received:
                    job = self._waiting.pop(0)
                    self._advance(job, self._work(job), None)
                for process in [process for process in self._running if process.poll() is not None]:
                    job, steps = self._running.pop(process)
                    self._advance(job, steps, process.returncode)
                self._forward()
                time.sleep(POLL_SECONDS)
        first = self._received[0] if self._received else None
        stopped = "" if first is None else f"; {first.name} received: the same command continues"
        print(f"{self.recorded} recorded, {self.unfinished} not finished, {len(self._waiting)} not started{stopped}")
        if first is not None:
            return 0 if first == signal.SIGINT else 128 + first
        return 1 if self.unfinished else 0

    def _advance(self, job: Job, steps: Steps, code: int | None) -> None:
        """Start the next command of a job, if it has one."""
        try:
            command = next(steps) if code is None else steps.send(code)
            if self._received:
                raise UserError("stopped")
        except StopIteration:
            return
        except UserError as error:
            self.unfinished += 1
            _say(job, "; ".join(str(error).splitlines()))
            return
        self._running[self._start(job, command)] = job, steps

    def _work(self, job: Job) -> Steps:
        """Train, evaluate if requested, and record the result."""
        commit, folder = commit_of(REPOSITORY), self._folder(job)
        threads = ["threads=1"] if self.limit > 1 and not _sets(job, "threads") else []
        command = ["train", job.preset, *job.overrides, *threads]
        command += [f"seed={job.seed}", f"run={job.name}", "--runs", str(self.runs)]
        if folder is not None and any(folder.checkpoints.glob("step-*")):  # without a checkpoint it must start again
            check_settings(job, folder)
            command = ["resume", str(folder.path)]
        if folder is None or not is_finished(folder):
            _say(job, "starts" if command[0] == "train" else "continues")
            code = yield command
            folder = self._folder(job)
            reason = None if folder is None else end_of(folder)
            if reason is not None and reason.startswith("SIG"):
                raise UserError(f"stopped: {reason}")
            if code or folder is None or not is_finished(folder):
                raise UserError(f"ended with code {code}: {self._last_line(job).strip()}")
        rows = rows_of(folder)
        score, protocol = training_score(rows) if not self.evaluate else (0.0, "")
        if self.evaluate:
            _say(job, "is evaluated")
            asked = ["--episodes", str(self.evaluate), "--protocol", self.protocol, "--json"]
            code = yield ["eval", str(folder.path), *asked]
            if code:
                raise UserError(f"evaluation ended with code {code}: {self._last_line(job)}")
            played = json.loads(self._last_line(job, "{"))
            score = played["mean"]
            how = f"{STARTS[self.protocol]}, {played['actions']}{'' if 'epsilon' in played['actions'] else ' actions'}"
            protocol = f"mean of {self.evaluate} evaluation episodes{how}"
        here = describe(*PACKAGES)
        result = Result(
            preset=job.preset,
            overrides=job.overrides,
            seed=job.seed,
            env_steps=rows[-1]["env_steps"],
            minutes=round(training_minutes(rows), 3),
            score=round(score, 4),
            protocol=protocol,
            versions={name: version for name, version in here["versions"].items() if version is not None},
            machine=here["machine"],
            commit=commit,
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            curve=learning_curve(rows),
            note=", ".join([f"{self.limit} runs at once", *threads]) if self.limit > 1 else "",
        )
        append(result, self.results)
        self.recorded += 1
        _say(job, f"score {score:.2f} at {result.env_steps:,} env steps in {result.minutes:.2f} minutes")

    def _folder(self, job: Job) -> RunFolder | None:
        """The latest folder of a job: `starling train` adds a number to a name that exists."""
        numbered = [self.runs / job.name, *(self.runs / f"{job.name}-{number}" for number in range(2, 100))]
        there = [path for path in numbered if path.is_dir()]
        return RunFolder(there[-1]) if there else None

    def _start(self, job: Job, command: list[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **({"OMP_NUM_THREADS": "1"} if self.limit > 1 else {})}
        with self._output(job).open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "starling", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _output(self, job: Job) -> Path:
        """The file with the output of all commands of a job."""
        return self.runs / f"{job.name}.out"

    def _last_line(self, job: Job, start: str = "") -> str:
        """The last line of a job's output that starts with `start`."""
        lines = self._output(job).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip() and line.startswith(start)), "it printed nothing")

    def _forward(self) -> None:
        """Forward signals to the processes, once each: the first asks them to save, the second ends them at once."""
        for number in self._received[self._forwarded :]:
            for process in self._running:
                process.send_signal(number)
            self._forwarded += 1

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received.append(signal.Signals(number))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._note) for number in filter(heeded, ENDING)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _ending_processes(self) -> Iterator[None]:
        """Let no process outlive an error here; each saves its run first."""
        try:
            yield
        finally:
            for process in self._running:
                process.terminate()
            for process in self._running:
                process.wait()


def check_settings(job: Job, folder: RunFolder) -> None:
    """Refuse to continue a run that was started with other settings than its job has now."""
    asked = to_dict(load(job.preset, [*job.overrides, f"seed={job.seed}"]))
    chosen = {"run", "threads", *(["precision"] if asked["precision"] == "auto" else [])}  # by the queue or the machine
    keys = {key for key, _ in differences(to_dict(folder.config()), asked)} - chosen
    if keys:
        raise UserError(
            f"{folder.path} has other settings than the preset has now ({', '.join(sorted(keys))});"
            " move it away or choose another --runs"
        )


def commit_of(repository: Path) -> str:
    """The current commit, with + if its source was changed; empty without git."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=False)

    try:
        commit = git("rev-parse", "--short=10", "HEAD").stdout.strip()
        changed = git("status", "--porcelain", "--", "src", ":!src/starling/tools/results/results.jsonl").stdout
    except OSError:
        return ""
    return f"{commit}+" if commit and changed else commit


def _sets(job: Job, key: str) -> bool:
    return any(override.partition("=")[0] == key for override in job.overrides)


def _say(job: Job, what: str) -> None:
    print(f"{job}: {what}", flush=True)


def jobs_in(file: Path, seeds: list[int]) -> list[tuple[str, list[str], list[int]]]:
    """Presets, overrides, and seeds in a YAML file; `seeds` is the default."""
    try:
        listed = parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise UserError(f"{file} must be a list of jobs such as - {{preset: ppo-cartpole, seeds: 5}}")
    return [_entry(entry, seeds, f"{file}, job {number}") for number, entry in enumerate(listed, 1)]


def _entry(entry: dict[Any, Any], seeds: list[int], where: str) -> tuple[str, list[str], list[int]]:
    known = ("preset", "overrides", "seeds")
    for key in entry:
        if key not in known:
            raise UserError(f"{where}: unknown key {key!r}{did_you_mean(str(key), known)}; it takes {', '.join(known)}")
    preset, overrides, given = entry.get("preset"), entry.get("overrides", []), entry.get("seeds", seeds)
    if not isinstance(preset, str):
        raise UserError(f"{where}: preset must name a preset (starling presets lists them)")
    if not isinstance(overrides, list) or not all(isinstance(override, str) for override in overrides):
        raise UserError(f"{where}: overrides must be a list of key=value")
    if type(given) is int:
        given = list(range(given))
    if not isinstance(given, list) or not given or not all(type(seed) is int and seed >= 0 for seed in given):
        raise UserError(f"{where}: seeds must be a number of seeds or a list of seeds")
    return preset, overrides, given


def checked(wanted: list[tuple[str, list[str], list[int]]]) -> list[Job]:
    """All jobs, once each: every first seed, then every second one, and so on; rejects what cannot be trained."""
    for preset, overrides, _ in wanted:
        if preset not in preset_names():
            raise UserError(f"unknown preset {preset!r}{did_you_mean(preset, preset_names())}; see starling presets")
        for override in overrides:
            if override.partition("=")[0] in ("seed", "run"):
                raise UserError(f"{preset}: {override} cannot be an override here; use --seeds, and runs are named")
        load_checked(preset, overrides)
    most = max(len(seeds) for _, _, seeds in wanted)
    turns = [(wanted[i], turn) for turn in range(most) for i in range(len(wanted))]
    return list(
        dict.fromkeys(
            Job(preset, tuple(overrides), seeds[turn])
            for (preset, overrides, seeds), turn in turns
            if turn < len(seeds)
        )
    )


def parse_seeds(text: str) -> list[int]:
    """`5` (0 to 4), `3-6`, or `0,4,7`."""
    try:
        if "," in text:
            found = [int(part) for part in text.split(",")]
        else:
            first, dash, last = text.partition("-")
            found = list(range(int(first), int(last) + 1)) if dash else list(range(int(text)))
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise UserError(f"--seeds {text}: give a number of seeds, a range such as 3-6, or a list such as 0,4,7")
    return found


class _Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message} (see --help)", file=sys.stderr)
        sys.exit(2)


def _arguments() -> argparse.Namespace:
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", metavar="JOBS.yaml", help="a list of jobs")
    parser.add_argument(
        "--job", nargs="+", action="append", default=[], metavar=("PRESET", "KEY=VALUE"), help="a job; may be repeated"
    )
    parser.add_argument("--seeds", default="5", help="a number of seeds, 3-6, or 0,4,7, where a job names none (5)")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs, outside the repository")
    parser.add_argument("--results", type=Path, default=FILE, help="results file (the one that Starling comes with)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at once (one per core)")
    parser.add_argument("--evaluate", type=int, default=0, metavar="N", help="score N evaluation episodes instead")
    parser.add_argument("--protocol", choices=STARTS, default="as-trained", help="protocol of the evaluation")
    arguments = parser.parse_args()
    if arguments.file is None and not arguments.job:
        parser.error("name a file of jobs, or jobs with --job PRESET")
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: at least one run at a time")
    if arguments.evaluate < 0:
        parser.error(f"--evaluate {arguments.evaluate}: the number of episodes cannot be negative")
    return arguments


def main() -> int:
    arguments = _arguments()
    try:
        runs: Path = arguments.runs.expanduser().resolve()
        if runs.is_relative_to(REPOSITORY):
            raise UserError(f"--runs {runs} is inside the repository; choose a folder outside of it")
        seeds = parse_seeds(arguments.seeds)
        wanted = [] if arguments.file is None else jobs_in(arguments.file, seeds)
        wanted += [(preset, overrides, seeds) for preset, *overrides in arguments.job]
        if not wanted:
            raise UserError(f"{arguments.file} lists no jobs")
        jobs = checked(wanted)
        try:
            runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {runs}: {error.strerror}") from None
        queue = Queue(jobs, runs, arguments.results, arguments.jobs, arguments.evaluate, arguments.protocol)
        return queue.run()
    except UserError as error:
        print(f"error: {'; '.join(str(error).splitlines())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
