"""Videos are decoded again, as a player would show them."""

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
    """A white square that moves by one pixel per frame on a dark background."""
    frames = np.full((length, height, width, 3), 20, np.uint8)
    for t in range(length):
        frames[t, 10:20, t : t + 10] = 255
    return frames


def read_gif(path):
    with Image.open(path) as gif:
        shown = []
        for number in range(gif.n_frames):
            gif.seek(number)
            shown.append((np.asarray(gif.convert("RGB")), gif.info["duration"]))
    return shown


def test_mp4_has_every_frame_in_order_enlarged_without_blur(read_mp4, tmp_path):
    frames = clip(40)
    video = write_video(tmp_path / "a.mp4", frames, fps=15)
    metadata, decoded = read_mp4(video)
    assert len(decoded) == 40
    assert metadata["fps"] == 15
    assert metadata["pix_fmt"].startswith("yuv420p")
    assert metadata["size"] == (84 * 4, 84 * 4)
    for t, image in enumerate(decoded):
        difference = image.astype(int) - frames[t].repeat(4, axis=0).repeat(4, axis=1)
        assert np.abs(difference).mean() < 3
    assert [path.name for path in video.parent.iterdir()] == ["a.mp4"]


def test_gif_has_every_frame_exactly_with_its_frame_rate(tmp_path):
    frames = clip(12, height=300, width=40)
    shown = read_gif(write_video(tmp_path / "a.GIF", frames, fps=20))
    assert [duration for _, duration in shown] == [50] * 12
    for (image, _), frame in zip(shown, frames, strict=True):
        np.testing.assert_array_equal(image, frame)


def test_gif_with_a_too_high_frame_rate_skips_frames_and_keeps_its_duration(tmp_path):
    frames = clip(60)
    shown = read_gif(write_video(tmp_path / "a.gif", frames, fps=150))
    assert [duration for _, duration in shown] == [20] * 20  # browsers show nothing faster; 0.4 s in all, as before
    for number in (0, 1, 19):
        np.testing.assert_array_equal(shown[number][0][::4, ::4], frames[3 * number])


def test_gif_shows_a_still_image_for_its_full_duration(tmp_path):
    frames = clip(3).repeat(4, axis=0)
    assert [duration for _, duration in read_gif(write_video(tmp_path / "a.gif", frames, fps=10))] == [400] * 3


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((401, 301, 3), (302, 402)),  # (width, height): odd sizes get one more row or column
        ((255, 10, 3), (20, 510)),
        ((10, 1000, 3), (1000, 10)),  # enlarged as much as fits
        ((64, 64), (256, 256)),
        ((64, 64, 1), (256, 256)),
        ((64, 64, 4), (256, 256)),
    ],
)
def test_images_of_any_size_and_kind_are_accepted(read_mp4, tmp_path, shape, size):
    frames = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    metadata, decoded = read_mp4(write_video(tmp_path / "a.mp4", frames, fps=30))
    assert metadata["size"] == size
    assert len(decoded) == 3


def test_mp4_is_written_without_all_frames_in_memory(tmp_path):
    frames = (np.full((400, 600, 3), t, np.uint8) for t in range(60))  # 43 MB in all
    tracemalloc.start()
    try:
        write_video(tmp_path / "a.mp4", frames, fps=30)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8e6


def test_existing_file_is_replaced_or_the_new_one_numbered(tmp_path):
    video = tmp_path / "a.gif"
    assert write_video(video, clip(2), fps=10) == video
    assert write_video(video, clip(3), fps=10) == video
    assert len(read_gif(video)) == 3
    assert write_video(video, clip(4), fps=10, replace=False) == tmp_path / "a-2.gif"
    assert write_video(video, clip(5), fps=10, replace=False) == tmp_path / "a-3.gif"
    assert [len(read_gif(tmp_path / name)) for name in ("a.gif", "a-2.gif", "a-3.gif")] == [3, 4, 5]


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_interrupted_video_leaves_only_the_old_file(tmp_path, name):
    def interrupted():
        yield from clip(20)
        raise KeyboardInterrupt

    video = tmp_path / name
    video.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_video(video, interrupted(), fps=10)
    assert video.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [video]


@pytest.mark.parametrize(("name", "length"), [("a.gif", 3), ("a.mp4", 2), ("a.mp4", 150)])
def test_full_disk_is_a_clear_error_and_leaves_no_file(tmp_path, name, length):
    """A short mp4 fails when it is closed, a long one while its frames are sent."""
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
def test_unwritable_file_is_an_error_before_the_first_frame(tmp_path, name, fps, message):
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
def test_invalid_frames_are_a_clear_error_and_leave_no_file(tmp_path, name, frames, message):
    with pytest.raises(UserError, match=message):
        write_video(tmp_path / name, frames, 30)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "module", "package"), [("a.mp4", "imageio_ffmpeg", "imageio_ffmpeg"), ("a.gif", "PIL.Image", "PIL")]
)
def test_missing_package_is_an_error_with_its_install_command(tmp_path, monkeypatch, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)  # as if the module were not installed
    with pytest.raises(UserError, match=rf"videos need the package {package}: pip install 'starling-rl\[video\]'"):
        check_video(tmp_path / name, None)


def test_partial_file_becomes_the_target_when_finished(tmp_path):
    target = tmp_path / "log.json"
    with PartialFile(target) as partial:
        partial.write(b"{}")
        assert not target.exists()
        assert partial.finish() == target
    assert target.read_bytes() == b"{}"
    assert list(target.parent.iterdir()) == [target]


def test_missing_folder_is_an_error_and_nothing_is_created(tmp_path):
    target = tmp_path / "no" / "such" / "a.gif"
    with pytest.raises(UserError, match=f"there is no folder {target.parent}; make it first"):
        write_video(target, clip(2), fps=10)
    assert list(tmp_path.iterdir()) == []
