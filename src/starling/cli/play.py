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
        typer.Option(help="Record a video: out.mp4 or out.gif.", show_default="in RUN/videos, unless --log is given"),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="Write every step with all network outputs: steps.json.", show_default="no log"),
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
    allow: Allow = None,
) -> None:
    """Record a video of a run's agent, or log its actions and network outputs step by step.

    Example: starling play runs/mine --episodes 2 --video mine.gif --log steps.json
    """
    from starling.experiment.run_folder.folder import find
    from starling.tools.video import check_folder, check_video, package

    find(run, allow or ()).config()  # reports errors before torch is imported
    if video or not log:
        check_video(video or Path("video.mp4"), fps)
    for file in filter(None, (video, log)):
        check_folder(file)
    if streams:
        package("PIL.ImageDraw")

    from starling.tools.play import Demand, play_run

    demand = Demand(episodes, seed, explore, max_steps, checkpoint, video, log, fps, streams, tuple(allow or ()))
    for file in play_run(run, demand, report=_score, warn=say):
        print(f"wrote {file}")


def _score(number: int, shown: Shown) -> None:
    end = "" if shown.finished else ", cut off"
    print(f"episode {number + 1}: score {shown.total:g} in {shown.length} steps{end}", flush=True)
