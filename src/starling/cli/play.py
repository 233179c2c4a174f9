"""`starling play`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starling.cli.arguments import Allow, Checkpoint, Run
from starling.cli.show import say

if TYPE_CHECKING:
    from starling.tools.play import Shown


def play(
    run: Run,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the environment.")] = 1_000_000,
    checkpoint: Checkpoint = "newest",
    video: Annotated[
        Path | None,
        typer.Option(
            help="Record a video: out.mp4 or out.gif.", show_default="in RUN/videos, unless --log or --window is given"
        ),
    ] = None,
    window: Annotated[bool, typer.Option("--window", help="Show the game in a window; Escape closes it.")] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            help="Write every step with action, rewards, and network outputs: steps.json.", show_default="no log"
        ),
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(help="Frames per second.", show_default="the env's render_fps, else 30"),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Cut episodes off after this many steps.", show_default="never")
    ] = None,
    explore: Annotated[bool, typer.Option("--explore/--no-explore", help="Act as in training.")] = False,
    streams: Annotated[
        bool, typer.Option("--streams/--no-streams", help="Show every reward stream below the frames.")
    ] = False,
    view: Annotated[
        bool, typer.Option("--view/--no-view", help="Show the images that the agent sees beside the frames.")
    ] = False,
    allow: Allow = None,
) -> None:
    """Record a video of a run's agent, show it in a window, or log its actions and network outputs step by step.

    Example: starling play runs/mine --episodes 2 --video mine.gif --log steps.json
    """
    from starling.experiment.run_folder.folder import find
    from starling.tools.video import check_folder, check_fps, check_video, package

    find(run, allow or ()).config()  # reports errors before torch is imported
    if window:
        from starling.tools.window import check_display

        check_display()
        check_fps(fps)
    if video or not (log or window):
        check_video(video or Path("video.mp4"), fps)
    for file in filter(None, (video, log)):
        check_folder(file)
    if streams:
        package("PIL.ImageDraw")

    from starling.tools.play import Demand, play_run

    demand = Demand(
        episodes=episodes,
        seed=seed,
        explore=explore,
        max_steps=max_steps,
        checkpoint=checkpoint,
        video=video,
        log=log,
        fps=fps,
        streams=streams,
        view=view,
        window=window,
        allow=tuple(allow or ()),
    )
    for file in play_run(run, demand, report=_score, warn=say):
        print(f"wrote {file}")


def _score(number: int, shown: Shown) -> None:
    end = "" if shown.finished else ", cut off"
    print(f"episode {number + 1}: score {shown.total:g} in {shown.length} steps{end}", flush=True)
