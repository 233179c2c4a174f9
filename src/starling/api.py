"""The commands as a Python API: train, resume, load an agent and act, register custom parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from starling import tree
from starling.config.algorithms import ALGORITHMS
from starling.config.load import from_dict, is_file
from starling.config.load import load as load_config
from starling.config.notes import notes_on
from starling.config.schema import Config
from starling.envs.registry import make_env
from starling.envs.registry import register_env as register_env
from starling.envs.wrappers import WRAPPERS
from starling.experiment import train as training
from starling.experiment.display import Display, Status
from starling.experiment.run_folder.folder import Vetting
from starling.experiment.session import Result
from starling.nets.torsos import TORSOS
from starling.tools import evaluate as evaluation
from starling.types import EnvStep, Tree


class Quiet:
    """A display that shows nothing."""

    def tick(self, status: Status) -> None: ...

    def row(self, row: dict[str, Any]) -> None: ...

    def message(self, line: str) -> None: ...


class PrintDisplay:
    """A display that prints messages, and one line per row of metrics: env steps, mean return, speed, losses."""

    def tick(self, status: Status) -> None:
        """Called several times per second; prints nothing."""

    def row(self, row: dict[str, Any]) -> None:
        """Print a row of metrics, with the keys of `metrics.jsonl`."""
        score = "-" if row["return"] is None else f"{row['return']:.1f}"
        facts = [f"{row['env_steps']:>9,} env steps", f"return {score:>6}", f"{row['time/steps_per_s']:>7,.0f} steps/s"]
        losses = [key for key in row if key.startswith("loss/") and key.count("/") == 1]
        self.message("  ".join([*facts, *(f"{key.removeprefix('loss/')} {row[key]:.3g}" for key in losses)]))

    def message(self, line: str) -> None:
        """Print a message of the run."""
        print(line, flush=True)


def train(
    source: str | dict[str, Any] | Config,
    overrides: Sequence[str] = (),
    *,
    runs: str | Path = "runs",
    display: Display | None = None,
    allow: Sequence[str] = (),
) -> Result:
    """Train an agent, as `starling train` does.

    Sets torch's number of threads for this process. Ctrl-C saves a checkpoint and returns early.

    Args:
        source: the name of a preset, a YAML file, a nested dict, or a `Config`.
        overrides: `key.sub=value` settings to change, e.g. `sys.argv[1:]`; not for a `Config`.
        runs: the folder in which the run's own folder is created, or is there already with nothing but `source` in it.
        display: receives progress, rows of metrics, and messages, e.g. `PrintDisplay()`; by default nothing is shown.
        allow: packages that may be imported if the file is in a run folder that was made by somebody else.

    Returns:
        The result of the run: its folder, counts, scores, and the reason why it ended.

    Raises:
        UserError: The configuration cannot be used; the message says what to change.
        ValueError: `overrides` were given with a `Config`.
    """
    file, notes = None, list[str]()
    if isinstance(source, str):
        vetting = Vetting(allow)
        config = load_config(source, overrides, vet=vetting)
        vetting.check_cluster(overrides)
        file, notes = Path(source) if is_file(source) else None, notes_on(source, overrides, config)
    elif isinstance(source, dict):
        config = from_dict(source, overrides)
    elif overrides:
        raise ValueError("overrides go with a preset, a file, or a dict; change the Config itself")
    else:
        config = source
    return training.train(config, Path(runs), display or Quiet(), file=file, notes=notes)


def resume(
    run: str | Path, *, checkpoint: str = "newest", display: Display | None = None, allow: Sequence[str] = ()
) -> Result:
    """Resume a run in its own folder, as `starling resume` does.

    Args:
        run: the run's folder.
        checkpoint: `newest`, `best`, or the env steps of a checkpoint.
        display: receives progress, rows of metrics, and messages; by default nothing is shown.
        allow: packages that the run may import if it was made by somebody else. Your own runs need none.
    """
    return training.resume(Path(run), display or Quiet(), which=checkpoint, allow=allow)


def load(run: str | Path, *, checkpoint: str = "newest", allow: Sequence[str] = ()) -> Agent:
    """Load the trained agent of a run.

    Args:
        run: the run's folder.
        checkpoint: `newest`, `best`, or the env steps of a checkpoint.
        allow: packages that the run may import if it was made by somebody else. Your own runs need none.
    """
    trained = evaluation.load_agent(
        Path(run), which=checkpoint, protocol="as-trained", warn=lambda line: None, allow=allow
    )
    return Agent(trained)


@dataclass(frozen=True)
class AgentState:
    """State of an agent between two steps of an episode."""

    carry: Tree  # [1, ...]
    step: int
    intrinsic_state: Tree  # [1, ...] episodic state of intrinsic rewards, and the policy that acts
    action: Tree  # [1, ...] the last action, in the policy's units


class Agent:
    """A trained policy that acts in one environment at a time."""

    def __init__(self, trained: evaluation.TrainedAgent) -> None:
        settings = trained.run_plan.config.env
        self.env, self._clip = trained.run_plan.env, settings.reward_clip
        self._policies = {explore: trained.policy(explore=explore) for explore in (False, True)}
        env = make_env(settings, 1)
        self._encode, self._decode = env.encode, env.decode
        env.close()

    def act(
        self, obs: Tree, state: AgentState | None = None, *, reward: float = 0.0, explore: bool = False, seed: int = 0
    ) -> tuple[Any, AgentState]:
        """Choose an action for an observation.

        Without `explore`, an algorithm with several policies uses the one that was best in the trials of its
        evaluations.

        Args:
            obs: a single observation, as the environment returns it.
            state: the state that the last call returned; None at the start of an episode.
            reward: the reward of the last action; only used by networks that take rewards as input.
            explore: act like the first env in training at the time of the checkpoint, e.g. with its epsilon.
            seed: seed of the exploration noise.

        Returns:
            The action for `env.step`, and the state for the next call.
        """
        policy = self._policies[explore]
        group = policy.new_group(np.zeros(1, np.int64), seed)
        if state is not None:
            group.carry, group.step, group.action = dict(state.carry), state.step, state.action
            group.intrinsic_state = tree.map(
                lambda leaf: leaf.clone(), state.intrinsic_state
            )  # the policy changes it in place
        flag, earned = np.zeros(1, bool), np.array([0.0 if state is None else reward], np.float32)
        batch = self._encode(_batch_of_one(obs))
        group.latest = EnvStep(batch, np.array([state is None]), earned, flag, flag, ~flag, flag)
        _, (output,) = policy.step([group], self._clip)
        group.advance(output)
        return self._decode(output.action)[0], AgentState(group.carry, group.step, group.intrinsic_state, group.action)


def _batch_of_one(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _batch_of_one(value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_batch_of_one(value) for value in obs)
    return np.asarray(obs)[None]


def register_algorithm(name: str, algorithm: Any, summary: str = "") -> None:
    """Register an `Algorithm` class, whose attribute `Config` is its settings class, as `algo.name=NAME`."""
    ALGORITHMS.register(name, algorithm, summary)


def register_torso(name: str, torso: Any, summary: str = "") -> None:
    """Register a module class as `net.torso.kind=NAME`; it is constructed with `(space, **net.torso.args)`."""
    TORSOS.register(name, torso, summary)


def register_wrapper(name: str, wrapper: Any, summary: str = "") -> None:
    """Register a Gymnasium wrapper class for use in `env.wrappers`."""
    WRAPPERS.register(name, wrapper, summary)
