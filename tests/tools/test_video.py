"""Films are decoded again: what counts is what a player would show."""

import resource
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from starling.errors import UserError
from starling.tools.video import PartialFile, check_video, write_video


def clip(length, height=84, width=84):
    """A white square that moves by one pixel a frame on a dark ground."""
    frames = np.full((length, height, width, 3), 20, np.uint8)
    for t in range(length):
        frames[t, 10:20, t : t + 10] = 255
    return frames


def read_gif(path):
    with Image.open(path) as film:
        shown = []
        for number in range(film.n_frames):
            film.seek(number)
            shown.append((np.asarray(film.convert("RGB")), film.info["duration"]))
    return shown


def test_an_mp4_holds_every_frame_in_order_enlarged_without_blur(read_mp4, tmp_path):
    frames = clip(40)
    film = write_video(tmp_path / "a.mp4", frames, fps=15)
    about, decoded = read_mp4(film)
    assert len(decoded) == 40
    assert about["fps"] == 15
    assert about["pix_fmt"].startswith("yuv420p")
    assert about["size"] == (84 * 4, 84 * 4)
    for t, picture in enumerate(decoded):
        difference = picture.astype(int) - frames[t].repeat(4, axis=0).repeat(4, axis=1)
        assert np.abs(difference).mean() < 3
    assert [path.name for path in film.parent.iterdir()] == ["a.mp4"]


def test_a_gif_holds_every_frame_exactly_and_its_pace(tmp_path):
    frames = clip(12, height=300, width=40)
    shown = read_gif(write_video(tmp_path / "a.GIF", frames, fps=20))
    assert [duration for _, duration in shown] == [50] * 12
    for (picture, _), frame in zip(shown, frames, strict=True):
        np.testing.assert_array_equal(picture, frame)


def test_a_gif_of_more_frames_than_can_be_shown_leaves_some_out_and_lasts_as_long(tmp_path):
    frames = clip(60)
    shown = read_gif(write_video(tmp_path / "a.gif", frames, fps=150))
    assert [duration for _, duration in shown] == [20] * 20  # browsers show nothing quicker; 0.4 s in all, as before
    for number in (0, 1, 19):
        np.testing.assert_array_equal(shown[number][0][::4, ::4], frames[3 * number])


def test_a_gif_shows_what_stands_still_for_as_long(tmp_path):
    frames = clip(3).repeat(4, axis=0)
    assert [duration for _, duration in read_gif(write_video(tmp_path / "a.gif", frames, fps=10))] == [400] * 3


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((401, 301, 3), (302, 402)),  # (width, height): odd sizes get one line more
        ((255, 10, 3), (20, 510)),
        ((10, 1000, 3), (1000, 10)),  # as large as fits
        ((64, 64), (256, 256)),
        ((64, 64, 1), (256, 256)),
        ((64, 64, 4), (256, 256)),
    ],
)
def test_any_size_and_any_kind_of_picture_fits(read_mp4, tmp_path, shape, size):
    frames = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    about, decoded = read_mp4(write_video(tmp_path / "a.mp4", frames, fps=30))
    assert about["size"] == size
    assert len(decoded) == 3


def test_an_mp4_is_written_without_its_frames_in_memory(tmp_path):
    frames = (np.full((400, 600, 3), t, np.uint8) for t in range(60))  # 43 MB in all
    tracemalloc.start()
    try:
        write_video(tmp_path / "a.mp4", frames, fps=30)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8e6


def test_a_taken_name_is_replaced_or_numbered_as_asked(tmp_path):
    film = tmp_path / "a.gif"
    assert write_video(film, clip(2), fps=10) == film
    assert write_video(film, clip(3), fps=10) == film
    assert len(read_gif(film)) == 3
    assert write_video(film, clip(4), fps=10, replace=False) == tmp_path / "a-2.gif"
    assert write_video(film, clip(5), fps=10, replace=False) == tmp_path / "a-3.gif"
    assert [len(read_gif(tmp_path / name)) for name in ("a.gif", "a-2.gif", "a-3.gif")] == [3, 4, 5]


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_what_is_interrupted_leaves_the_old_file_and_nothing_else(tmp_path, name):
    def interrupted():
        yield from clip(20)
        raise KeyboardInterrupt

    film = tmp_path / name
    film.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_video(film, interrupted(), fps=10)
    assert film.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [film]


@pytest.mark.parametrize(("name", "length"), [("a.gif", 3), ("a.mp4", 2), ("a.mp4", 150)])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, name, length):
    """A short mp4 fails only when it is closed, a long one while its frames are sent."""
    script = f"""
        import numpy as np
        from pathlib import Path
        from starling.errors import UserError
        from starling.tools.video import write_video
        frames = np.random.default_rng(0).integers(0, 256, ({length}, 256, 256, 3), np.uint8)
        try:
            write_video(Path({name!r}), frames, fps=30)
        except UserError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert done.stdout.startswith(f"cannot write {name}: ")
    assert len(done.stdout.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "fps", "message"),
    [
        ("a.avi", 30, r"a.avi does not end in .mp4 or .gif"),
        ("a", 30, r"does not end in .mp4 or .gif"),
        ("a.mp4", 0, "0 frames per second cannot be shown"),
        ("a.mp4", float("nan"), "nan frames per second cannot be shown"),
        ("folder.gif", 30, "folder.gif is a folder"),
        ("file/a.gif", 30, "cannot write .*file/a.gif: "),
        ("/proc/a.mp4", 30, "cannot write /proc/a.mp4: "),
    ],
)
def test_what_cannot_be_written_is_told_before_the_first_frame_is_asked_for(tmp_path, name, fps, message):
    def frames():
        raise AssertionError("a frame was asked for")
        yield

    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=message):
        write_video(tmp_path / name, frames(), fps)
    assert {path.name for path in tmp_path.iterdir()} == {"folder.gif", "file"}


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "at least one image"),
        ([np.zeros((8, 8, 3), np.float32)], r"shape \(8, 8, 3\), float32 cannot be recorded"),
        ([np.zeros((8, 8, 2), np.uint8)], r"shape \(8, 8, 2\), uint8 cannot be recorded"),
        ([np.zeros((300, 8, 3), np.uint8), np.zeros((300, 9, 3), np.uint8)], "images of two sizes"),
    ],
)
@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_pictures_that_make_no_film_are_told_and_leave_nothing(tmp_path, name, frames, message):
    with pytest.raises(UserError, match=message):
        write_video(tmp_path / name, frames, 30)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "module", "package"), [("a.mp4", "imageio_ffmpeg", "imageio_ffmpeg"), ("a.gif", "PIL.Image", "PIL")]
)
def test_a_missing_package_is_named_with_how_to_get_it(tmp_path, monkeypatch, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)  # what an import finds where it is not installed
    with pytest.raises(UserError, match=rf"videos need the package {package}: pip install 'starling-rl\[video\]'"):
        check_video(tmp_path / name, None)


def test_a_draft_is_beside_its_place_until_it_is_finished(tmp_path):
    target = tmp_path / "log.json"
    with PartialFile(target) as partial:
        partial.write(b"{}")
        assert not target.exists()
        assert partial.finish() == target
    assert target.read_bytes() == b"{}"
    assert list(target.parent.iterdir()) == [target]


def test_a_file_in_a_folder_that_is_not_there_is_refused_and_nothing_is_made(tmp_path):
    target = tmp_path / "no" / "such" / "a.gif"
    with pytest.raises(UserError, match=f"there is no folder {target.parent}; make it first"):
        write_video(target, clip(2), fps=10)
    assert list(tmp_path.iterdir()) == []
