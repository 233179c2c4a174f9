"""Play episodes with a trained agent: show them, record a video, or log every step with the outputs of the network."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starling import tree
from starling.actor import noise
from starling.actor.core import EnvGroup, Policy
from starling.envs.registry import make_env
from starling.envs.vector import VectorEnv
from starling.errors import UserError
from starling.experiment.run_folder.tensorboard import TensorBoardFile
from starling.hardware import set_up_torch
from starling.launch.plan import plan_threads
from starling.tools.agent_view import beside, images_of
from starling.tools.evaluate import load_agent
from starling.tools.video import PartialFile, as_shown, draw_without_a_screen, write_video
from starling.tools.video_preview import Preview
from starling.tools.video_strip import Strip
from starling.tools.window import Window
from starling.types import EnvStep, NDArray, Tree

_ENV_INDEX = np.zeros(1, np.int64)  # index of the only env


@dataclass(frozen=True)
class Demand:
    """Options of `play_run`; with neither video, log, nor window, a video is written to the run's folder."""

    episodes: int
    seed: int
    explore: bool
    max_steps: int | None  # per episode; None: no limit
    checkpoint: str
    video: Path | None
    log: Path | None
    fps: float | None  # None: real time
    streams: bool  # show every reward stream below the frames
    view: bool = False  # show what the agent sees beside the frames
    window: bool = False  # show the frames as they are made
    allow: tuple[str, ...] = ()  # packages that may be imported if another user made the run folder


@dataclass
class Shown:
    """One episode: its raw return and, if a log was requested, its steps."""

    total: float = 0.0
    length: int = 0
    finished: bool = False  # False: cut off by `max_steps`, or the window was closed
    steps: list[dict[str, Any]] = field(default_factory=list)


def play_run(
    run: Path, demand: Demand, *, report: Callable[[int, Shown], None], warn: Callable[[str], None]
) -> list[Path]:
    """Play episodes with a run's agent; `report` is called after each. Returns the files that were written."""
    if demand.log and demand.log == demand.video:
        raise UserError(f"video and log cannot both be written to {demand.log}")
    draws = demand.video is not None or demand.window or not demand.log
    if demand.streams and not draws:
        raise UserError("reward streams are shown below a video: name one with --video (a log always has them)")
    if demand.view and not draws:
        raise UserError("the agent's view is shown beside a video: name one with --video")
    if draws:
        draw_without_a_screen(window=demand.window)  # before the first env is made, which may import the renderer
    agent = load_agent(run, which=demand.checkpoint, protocol="as-trained", warn=warn, allow=demand.allow)
    set_up_torch(plan_threads(agent.run_plan))
    settings, name = agent.run_plan.config.env, agent.checkpoint.name
    own = None if demand.video or demand.log or demand.window else run / "videos"
    film = demand.video if own is None else own / f"{name}.mp4"
    env = make_env(settings, 1, render=draws)
    try:
        policy = agent.policy(explore=demand.explore)
        player = Player(policy, env, demand, reward_clip=settings.reward_clip, report=report)
        if draws:
            player.try_picture()
        if own is not None:
            _make_folder(own)
        if demand.log and not has_named_outputs(policy.model):
            warn(f"the model of {agent.run_plan.config.algo.name} has no named outputs: the log has none")
        fps = demand.fps or env.pace
        with ExitStack() as stack:
            window = stack.enter_context(Window(f"{run.name}: {env.spec.id}", fps)) if demand.window else None
            log = stack.enter_context(PartialFile(demand.log)) if demand.log else None
            preview = Preview(fps) if own is not None else None
            files = _play(player, film, window, preview, fps)
            if own is not None and preview is not None:
                _add_to_tensorboard(own, preview, agent.progress.env_steps, warn)
            if log:
                about = {"run": str(run), "checkpoint": name, "env": env.spec.id, "seed": demand.seed}
                episodes = [_episode(shown) for shown in player.shown]
                log.write(json.dumps(about | {"episodes": episodes}).encode())
                files.append(log.finish())
        return files
    finally:
        env.close()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; name a file with --video") from None


def _play(player: Player, film: Path | None, window: Window | None, preview: Preview | None, fps: float) -> list[Path]:
    if film is None and window is None:
        deque(player.play(), maxlen=0)
        return []
    pictures = _pictures(player, window, preview)
    if film is not None:
        is_own = preview is not None  # a video in the run's folder, where none replaces another
        return [write_video(film, pictures, fps, replace=not is_own)]
    deque(pictures, maxlen=0)
    return []


def _pictures(player: Player, window: Window | None, preview: Preview | None) -> Iterator[NDArray]:
    """Yield an image per step, until the window is closed."""
    for _ in player.play():
        picture = player.picture()
        if preview is not None:
            preview.add(picture)
        yield picture
        if window is not None and not window.show(picture):
            return


def _add_to_tensorboard(folder: Path, preview: Preview, step: int, warn: Callable[[str], None]) -> None:
    """Write the preview into a folder of its own: TensorBoard reads only the newest of the files in a folder."""
    gif = preview.gif()
    if gif is not None:
        board = TensorBoardFile(folder, None, warn)
        board.write_image("video", gif, step)
        board.close()


class Player:
    """Play episodes in one env and record their returns and, if a log is requested, their steps."""

    def __init__(
        self,
        policy: Policy,
        env: VectorEnv,
        demand: Demand,
        *,
        reward_clip: float | None,
        report: Callable[[int, Shown], None],
    ) -> None:
        self.env, self.shown = env, list[Shown]()
        self._policy, self._demand, self._clip, self._report = policy, demand, reward_clip, report
        self._group = policy.new_group(_ENV_INDEX, demand.seed)
        self._strip = Strip() if demand.streams else None
        self._streams: tuple[str, ...] = ()  # known after the first reset

    def play(self) -> Iterator[None]:
        """Play all episodes; yields after every reset and every step."""
        for number in range(self._demand.episodes):
            shown = Shown()
            self.shown.append(shown)
            yield from self._episode(number, shown)
            self._report(number, shown)

    def picture(self) -> NDArray:
        picture = self.env.render()
        if self._demand.view:
            assert self._group.latest is not None
            picture = beside(picture, images_of(self._group.latest.obs, self.env.spec))
        return picture if self._strip is None else self._strip.under(as_shown(picture), self._streams)

    def try_picture(self) -> None:
        """Render once, so that an env that cannot render fails before any file is written."""
        self._group.latest = self.env.reset(self._seeds(0))
        self.picture()

    def _seeds(self, number: int) -> NDArray:
        return noise.seeds(self._demand.seed, _ENV_INDEX, number)

    def _episode(self, number: int, shown: Shown) -> Iterator[None]:
        begun = self._see(self.env.reset(self._seeds(number)))  # one seed per episode: it depends on no earlier one
        if self._strip is not None:
            self._strip.clear()
            self._streams = tuple(name for name in begun if "/" not in name)  # the others are sums of these
        yield
        while not shown.finished and shown.length != self._demand.max_steps:
            self._step(shown)
            if self.env.dropped[0]:
                raise self.env.drops[0]
            shown.finished = bool(self.env.game_over[0])  # not after a lost life
            yield

    def _see(self, step: EnvStep) -> dict[str, NDArray]:
        """Store the current step; returns its rewards per stream."""
        self._group.latest = step
        return self._policy.compute_rewards(self._group, self._clip)

    def _step(self, shown: Shown) -> None:
        group = self._group
        outputs = head_outputs(self._policy.model, group) if self._demand.log else {}
        (output,) = self._policy.infer([group])
        group.advance(output)
        step = self.env.step(output.action)
        rewards = self._see(step)
        if step.valid[0]:  # else the env was reset and the action ignored
            if self._strip is not None:
                self._strip.add({name: float(rewards[name][0]) for name in self._streams})
            if self._demand.log:
                action = self.env.decode(output.action)
                shown.steps.append({"step": shown.length, **_line(action, outputs, step, rewards)})
            shown.total += float(step.reward[0])
            shown.length += 1


def _line(action: NDArray, outputs: dict[str, Any], step: EnvStep, rewards: dict[str, NDArray]) -> dict[str, Any]:
    """Return one step for the log; `action` is in units of the env."""
    return {
        "action": _plain(action),
        "reward": _plain(step.reward),
        "rewards": _plain(rewards),
        "terminated": bool(step.terminated[0]),
        "truncated": bool(step.truncated[0]),
        "outputs": outputs,
    }


def has_named_outputs(model: Any) -> bool:
    """Return True if a model has a method `step` that returns outputs by name, as a `Network` does."""
    return hasattr(model, "step")


def head_outputs(model: Any, group: EnvGroup) -> dict[str, Any]:
    """Return the outputs of all heads for the group's observation; {} if they have no names."""
    assert group.latest is not None
    if not has_named_outputs(model):
        return {}
    where = next(model.parameters()).device
    obs, first, carry = tree.to_torch((group.latest.obs, group.latest.first, group.carry), where)
    with torch.inference_mode():
        outputs, _ = model.step(obs, first, carry)
    return {name: _plain(output) for name, output in tree.to_numpy(outputs).items()}


def _plain(values: Tree) -> Any:
    """Convert the first row of a leaf [1, ...], or of every leaf by path, to JSON values; null if not finite."""
    named = dict(tree.items(values))
    if "" in named:
        return _numbers(np.asarray(named[""])[0])
    return {name: _numbers(np.asarray(leaf)[0]) for name, leaf in named.items()}


def _numbers(leaf: Any) -> Any:
    values = np.asarray(leaf)
    odd = ~np.isfinite(values)
    if odd.any():
        values = values.astype(object)
        values[odd] = None
    return values.tolist()


def _episode(shown: Shown) -> dict[str, Any]:
    known = asdict(shown)
    return {"return": known.pop("total"), **known}
