"""Play episodes with a trained agent; record a video, or log every step with the outputs of the network."""

from __future__ import annotations

import json
import os
import sys
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
from starling.hardware import set_up_torch
from starling.launch.plan import plan_threads
from starling.tools.evaluate import load_agent
from starling.tools.video import PartialFile, as_shown, write_video
from starling.tools.video_strip import Strip
from starling.types import EnvStep, NDArray, Tree

_ENV_INDEX = np.zeros(1, np.int64)  # index of the only env


@dataclass(frozen=True)
class Demand:
    """Options of `play_run`; with neither video nor log, a video is written to the run's folder."""

    episodes: int
    seed: int
    explore: bool
    max_steps: int | None  # per episode; None: no limit
    checkpoint: str
    video: Path | None
    log: Path | None
    fps: float | None  # None: real time
    streams: bool  # show every reward stream below the frames of the video
    allow: tuple[str, ...] = ()  # packages that may be imported if another user made the run folder


@dataclass
class Shown:
    """One episode: its raw return and, if a log was requested, its steps."""

    total: float = 0.0
    length: int = 0
    finished: bool = False  # False: cut off by `max_steps`
    steps: list[dict[str, Any]] = field(default_factory=list)


def play_run(
    run: Path, demand: Demand, *, report: Callable[[int, Shown], None], warn: Callable[[str], None]
) -> list[Path]:
    """Play episodes with a run's agent; `report` is called after each. Returns the files that were written."""
    if demand.log and demand.log == demand.video:
        raise UserError(f"video and log cannot both be written to {demand.log}")
    if demand.streams and demand.log and not demand.video:
        raise UserError("reward streams are shown below a video: name one with --video (a log always has them)")
    if demand.video or not demand.log:
        _draw_without_a_screen()  # before the first env is made, which may import the renderer
    agent = load_agent(run, which=demand.checkpoint, protocol="as-trained", warn=warn, allow=demand.allow)
    set_up_torch(plan_threads(agent.run_plan))
    settings, name = agent.run_plan.config.env, agent.checkpoint.name
    film = demand.video or (None if demand.log else run / "videos" / f"{name}.mp4")
    env = make_env(settings, 1, render=film is not None)
    try:
        policy = agent.policy(explore=demand.explore)
        player = Player(policy, env, demand, reward_clip=settings.reward_clip, report=report)
        if film:
            player.try_picture()
        if film and demand.video is None:
            _make_folder(film.parent)
        with ExitStack() as stack:
            log = stack.enter_context(PartialFile(demand.log)) if demand.log else None
            files = _play(player, film, fps=demand.fps, replace=demand.video is not None)
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


def _play(player: Player, film: Path | None, *, fps: float | None, replace: bool) -> list[Path]:
    if film is None:
        deque(player.play(), maxlen=0)
        return []
    pictures = (player.picture() for _ in player.play())
    return [write_video(film, pictures, fps or player.env.pace, replace=replace)]


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
        picture = self.env.render()[0]
        return picture if self._strip is None else self._strip.under(as_shown(picture), self._streams)

    def try_picture(self) -> None:
        """Render once, so that an env that cannot render fails before any file is written."""
        self.env.reset(self._seeds(0))
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
                shown.steps.append({"step": shown.length, **_line(output.action, outputs, step, rewards)})
            shown.total += float(step.reward[0])
            shown.length += 1


def _line(action: Tree, outputs: dict[str, Any], step: EnvStep, rewards: dict[str, NDArray]) -> dict[str, Any]:
    return {
        "action": _plain(action),
        "reward": _plain(step.reward),
        "rewards": _plain(rewards),
        "terminated": bool(step.terminated[0]),
        "truncated": bool(step.truncated[0]),
        "outputs": outputs,
    }


def head_outputs(model: Any, group: EnvGroup) -> dict[str, Any]:
    """Return the outputs of all heads of a `Network` for the group's observation; {} if the model has no `step`."""
    assert group.latest is not None
    if not hasattr(model, "step"):
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


def _draw_without_a_screen() -> None:
    """Make pygame and MuJoCo render off-screen and without sound, so that no display is needed."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("MUJOCO_GL", "egl")
