"""What the commands do, from Python: train, resume, load an agent and act, register one's own parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from starling import tree
from starling.config.algo import ALGORITHMS
from starling.config.load import from_dict
from starling.config.load import load as load_config
from starling.config.schema import Config
from starling.envs.registry import make_env
from starling.envs.registry import register_env as register_env
from starling.envs.wrappers import WRAPPERS
from starling.experiment import train as training
from starling.experiment.run_folder.folder import of_config
from starling.experiment.session import Display, Result
from starling.experiment.status import Status
from starling.nets.torsos import TORSOS
from starling.tools import evaluate as evaluation
from starling.types import EnvStep, Tree


class Quiet:
    """A display that shows nothing."""

    def tick(self, status: Status) -> None: ...

    def row(self, row: dict[str, Any]) -> None: ...

    def message(self, line: str) -> None: ...


def train(
    source: str | dict[str, Any] | Config,
    overrides: Sequence[str] = (),
    *,
    runs: str | Path = "runs",
    display: Display | None = None,
    allow: Sequence[str] = (),
) -> Result:
    """Train a preset, a YAML file, a nested dict or a `Config`, as `starling train` does.

    It sets torch's threads for this process; Ctrl-C saves and returns early.

    Args:
        allow: packages that may be imported if the file is in a run folder that was made by somebody else.
    """
    if isinstance(source, str):
        run = of_config(source, allow)
        config = load_config(source, overrides, vet=None if run is None else run.vet)
        if run is not None:
            run.check_cluster(overrides)
    elif overrides:
        raise ValueError("overrides go with a preset or a file; change the dict or the Config itself")
    else:
        config = from_dict(source) if isinstance(source, dict) else source
    return training.train(config, Path(runs), display or Quiet())


def resume(
    run: str | Path, *, checkpoint: str = "newest", display: Display | None = None, allow: Sequence[str] = ()
) -> Result:
    """Go on with a run in its own folder, as `starling resume` does.

    Args:
        allow: packages that the run may import if it was made by somebody else. Your own runs need none.
    """
    return training.resume(Path(run), display or Quiet(), which=checkpoint, allow=allow)


def load(run: str | Path, *, checkpoint: str = "newest", allow: Sequence[str] = ()) -> Agent:
    """The trained agent of a run.

    Args:
        allow: packages that the run may import if it was made by somebody else. Your own runs need none.
    """
    trained = evaluation.load_agent(
        Path(run), which=checkpoint, protocol="as-trained", warn=lambda line: None, allow=allow
    )
    return Agent(trained)


@dataclass(frozen=True)
class AgentState:
    """What an agent remembers between two steps of one episode."""

    carry: Tree  # [1, ...]
    step: int
    intrinsic_state: Tree  # [1, ...] what intrinsic rewards remember of the episode, and which policy plays it
    action: Tree  # [1, ...] the last one, in the policy's units


class Agent:
    """A trained policy for one environment at a time."""

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
        """An action for `obs`, as the environment itself gives it, and the state for the next call.

        With `explore` it acts as the first env did in training when the checkpoint was taken, e.g. with that epsilon.
        Without it an algorithm with several policies plays the one that was best in the trials of its evaluations.
        `state` is None at the start of an episode. `reward` is what the last action earned; only networks that take
        rewards as input look at it.
        """
        policy = self._policies[explore]
        group = policy.group(np.zeros(1, np.int64), seed)
        if state is not None:
            group.carry, group.step, group.action = dict(state.carry), state.step, state.action
            group.intrinsic_state = tree.map(
                lambda leaf: leaf.clone(), state.intrinsic_state
            )  # which is changed in place
        flag, earned = np.zeros(1, bool), np.array([0.0 if state is None else reward], np.float32)
        batch = self._encode(_batch_of_one(obs))
        group.seen = EnvStep(batch, np.array([state is None]), earned, flag, flag, ~flag, flag)
        policy.reward(group, self._clip)
        (output,) = policy.infer([group])
        group.record_output(output)
        return self._decode(output.action)[0], AgentState(group.carry, group.step, group.intrinsic_state, group.action)


def _batch_of_one(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _batch_of_one(value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_batch_of_one(value) for value in obs)
    return np.asarray(obs)[None]


def register_algorithm(name: str, algorithm: Any, summary: str = "") -> None:
    """Make `algo.name=NAME` stand for an `Algorithm` class that has its settings as `Config`."""
    ALGORITHMS.register(name, algorithm, summary)


def register_torso(name: str, torso: Any, summary: str = "") -> None:
    """Make `net.torso.kind=NAME` stand for a module class, made with (space, **net.torso.args)."""
    TORSOS.register(name, torso, summary)


def register_wrapper(name: str, wrapper: Any, summary: str = "") -> None:
    """Make `name` in `env.wrappers` stand for a gymnasium wrapper class."""
    WRAPPERS.register(name, wrapper, summary)
