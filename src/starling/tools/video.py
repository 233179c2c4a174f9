"""Write videos as mp4 or gif; a file appears only when it is complete."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starling.errors import UserError
from starling.experiment.run_folder.disk import MODE

if TYPE_CHECKING:  # at run time this would import torch, and wrong file names are reported before that
    from starling.types import NDArray

MIN_HEIGHT = 256
"""Images with a smaller height in pixels are enlarged by an integer factor."""

_MAX_WIDTH = 1920  # of an enlarged image
_MIN_GIF_MS = 20  # browsers play faster gifs at 10 frames per second


class PartialFile:
    """Context manager that writes a file under a temporary name, and removes it on exit unless it was finished."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.parent / f".{target.name}.{os.getpid()}"

    def __enter__(self) -> PartialFile:
        if self.target.is_dir():
            raise UserError(f"{self.target} is a folder; name a file")
        check_folder(self.target)
        try:
            self.path.unlink(missing_ok=True)  # left by a killed process with this id
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE))
        except OSError as error:
            raise self.failed(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)

    def write(self, content: bytes) -> None:
        try:
            self.path.write_bytes(content)
        except OSError as error:
            raise self.failed(error) from None

    def finish(self, *, replace: bool = True) -> Path:
        """Rename the file to its target; with `replace=False`, a number is added to a name that exists already."""
        final = self.target if replace else _free(self.target)
        self.path.replace(final)
        return final

    def failed(self, error: OSError) -> UserError:
        """Return a `UserError` for an `error` in writing this file."""
        return UserError(f"cannot write {self.target}: {error.strerror or error}")


def _free(path: Path) -> Path:
    number = 1
    numbered = path
    while numbered.exists():
        number += 1
        numbered = path.with_stem(f"{path.stem}-{number}")
    return numbered


def check_folder(file: Path) -> None:
    """Raise `UserError` if the folder of a file does not exist: a mistyped path should not create folders."""
    if not file.parent.is_dir():
        raise UserError(f"cannot write {file}: there is no folder {file.parent}; make it first, or name another")


def check_video(path: Path, fps: float | None) -> None:
    """Raise `UserError` for an unknown format, an invalid frame rate, or a missing package, before any rendering."""
    if path.suffix.lower() not in _WRITERS:
        raise UserError(f"{path} does not end in {' or '.join(_WRITERS)}, the video formats that can be written")
    check_fps(fps)
    if path.suffix.lower() == ".gif":
        package("PIL.Image")
        return
    try:
        package("imageio_ffmpeg").get_ffmpeg_exe()
    except RuntimeError as error:
        raise UserError(f"an mp4 needs ffmpeg, and there is none here ({error}); write a .gif instead") from None


def check_fps(fps: float | None) -> None:
    """Raise `UserError` for an invalid frame rate."""
    if fps is not None and not 0.1 <= fps <= 1000:
        raise UserError(f"{fps:g} frames per second cannot be shown; choose 0.1 to 1000")


def draw_without_a_screen(*, window: bool = False) -> None:
    """Make pygame and MuJoCo render off-screen and without sound, so that no display is needed but for a window."""
    if not window:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("MUJOCO_GL", "egl")


def write_video(path: Path, frames: Iterable[NDArray], fps: float, *, replace: bool = True) -> Path:
    """Write `frames` ([H, W, 3] uint8, or gray, or with alpha) as they are produced; returns the path of the file.

    With `replace=False`, a number is added to a name that exists already.
    """
    check_video(path, fps)
    with PartialFile(path) as partial:
        pictures = _same_size(as_shown(frame) for frame in frames)
        _WRITERS[path.suffix.lower()](partial, pictures, fps)
        return partial.finish(replace=replace)


def _write_mp4(partial: PartialFile, pictures: Iterator[NDArray], fps: float) -> None:
    """Encode H.264 through a pipe to ffmpeg; only the current frame is in memory."""
    ffmpeg = package("imageio_ffmpeg")
    first = _even(next(pictures))
    height, width = first.shape[:2]
    # The size is even, so ffmpeg needs no block size; the format does not follow from the temporary name.
    settings = {"fps": fps, "quality": 7, "macro_block_size": 1, "ffmpeg_log_level": "fatal"}
    writer = ffmpeg.write_frames(partial.path, (width, height), output_params=["-f", "mp4"], **settings)
    sent = 0
    writer.send(None)
    try:
        for picture in chain([first], map(_even, pictures)):
            _send(writer, picture, partial)
            sent += 1
    finally:
        writer.close()
    # The pipe does not report ffmpeg's exit code: a disk that is full at the very end shows only in the file.
    if _length(partial.path) != sent:
        raise partial.failed(OSError("ffmpeg did not write all of it (is the disk full?)"))


def _send(writer: Any, picture: NDArray, partial: PartialFile) -> None:
    try:
        writer.send(picture)
    except OSError:
        raise partial.failed(OSError("ffmpeg ended early (is the disk full?)")) from None


def _length(film: Path) -> int | None:
    """Return the number of frames in an mp4; None if it cannot be read."""
    try:
        count: int = package("imageio_ffmpeg").count_frames_and_secs(film)[0]
    except RuntimeError:
        return None
    return count


def _write_gif(partial: PartialFile, pictures: Iterator[NDArray], fps: float) -> None:
    partial.write(encode_gif(pictures, fps))


def encode_gif(pictures: Iterator[NDArray], fps: float) -> bytes:
    """Encode with Pillow, which holds all frames in memory and merges equal ones into a longer one."""
    image = package("PIL.Image")
    every = math.ceil(fps * _MIN_GIF_MS / 1000)  # drop frames that are too fast to play, to keep the speed right
    first, *others = (image.fromarray(picture) for picture in islice(pictures, 0, None, every))
    pace = round(100 * every / fps) * 10  # gif durations are in hundredths of a second
    film = BytesIO()
    first.save(film, format="GIF", save_all=True, append_images=others, duration=pace, loop=0)
    return film.getvalue()


_WRITERS = {".mp4": _write_mp4, ".gif": _write_gif}


def package(name: str) -> Any:
    """Import a module that only videos need; raises `UserError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.partition(".")[0]
        raise UserError(f"videos need the package {package}: pip install 'starling-rl[video]'") from None


def as_shown(frame: NDArray) -> NDArray:
    """Convert an image to [H, W, 3] and enlarge it to `MIN_HEIGHT`; idempotent."""
    return _enlarged(_rgb(frame))


def _rgb(frame: NDArray) -> NDArray:
    """Convert an image to [H, W, 3]; it may be gray, [H, W] or [H, W, 1], or have alpha, [H, W, 4]."""
    picture = frame[..., None] if frame.ndim == 2 else frame
    if picture.ndim != 3 or picture.shape[-1] not in (1, 3, 4) or picture.dtype != np.uint8 or not picture.size:
        found = f"an image of shape {frame.shape}, {frame.dtype}"
        raise UserError(f"{found} cannot be recorded; it must be [H, W, 3] uint8")
    return picture.repeat(3, axis=-1) if picture.shape[-1] == 1 else picture[..., :3]


def _enlarged(picture: NDArray) -> NDArray:
    """Repeat every pixel, so that a small image stays sharp."""
    height, width = picture.shape[:2]
    factor = max(1, min(-(-MIN_HEIGHT // height), _MAX_WIDTH // width))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def _even(picture: NDArray) -> NDArray:
    """Pad height and width to even numbers: yuv420p stores one color per 2 x 2 pixels."""
    height, width = picture.shape[:2]
    return np.ascontiguousarray(np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


def _same_size(pictures: Iterable[NDArray]) -> Iterator[NDArray]:
    size: tuple[int, ...] | None = None
    for picture in pictures:
        size = size or picture.shape
        if picture.shape != size:
            raise UserError(f"images of two sizes, {size[:2]} and {picture.shape[:2]}, cannot be one video")
        yield picture
    if size is None:
        raise UserError("a video needs at least one image")
