"""`starling play` on briefly trained agents; videos are decoded and checked."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from starling.cli.play import play
from starling.errors import UserError
from starling.tools.evaluate import evaluate_run
from starling.tools.video_strip import BAND

RUNS = {
    "cartpole": ["dqn-cartpole", "stop.env_steps=300", "algo.learning_starts=100", "checkpoint.every=100"],
    "identity": [
        "ppo-cartpole", "env={id: toy/identity, num: 8}", "net.torso.hidden=[32]", "algo.rollout=32",
        "algo.discount=0.5", "algo.optimizer.args.lr=0.005", "stop.env_steps=1280", "stop.return=null",
    ],
    "minatar": ["ppo-minatar-breakout", "stop.env_steps=256", "env.num=4", "algo.rollout=16"],
    "memory": [
        "ppo-cartpole", "env.id=toy/memory", "stop.env_steps=256", "env.num=4", "algo.rollout=16", "algo.minibatches=2",
        "net.core={kind: lstm, size: 8}", "net.inputs=[action, reward]", "env.reward_clip=0.25",
    ],
    "cheetah": [
        "ppo-halfcheetah", "stop.env_steps=64", "algo.rollout=32", "algo.minibatches=1", "algo.epochs=1",
        "net.torso.hidden=[8]", "eval.every=null", "compile=false",
    ],
    "curious": [
        "ppo-rnd-deepsea", "env={id: toy/rooms, num: 4, args: {limit: 20}}", "stop.env_steps=128", "algo.rollout=16",
        "algo.minibatches=1", "algo.epochs=1", "curiosity.0.warm_up=0",
    ],
    "lives": [
        "ppo-cartpole", "env.id=ALE/Breakout-v5", "env.atari={episodic_life: true, fire_reset: true, size: 36}",
        "net.torso.kind=nature", "net.shared=true", "env.num=2", "algo.rollout=8", "algo.epochs=1",
        "algo.minibatches=1", "stop.env_steps=16", "checkpoint.every=16", "threads=1",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, train_once):
    return train_once(tmp_path_factory.mktemp("runs"), RUNS)


def scores(printed):
    """Score and length of every printed episode."""
    lines = [line.split() for line in printed.splitlines() if line.startswith("episode")]
    return [(float(words[3]), int(words[5])) for words in lines]


def test_video_is_written_to_the_run_folder_and_never_overwrites_another(runs, read_mp4, capsys):
    run = runs("cartpole")
    play(run)
    play(run, seed=7)
    printed = capsys.readouterr().out
    videos = [run / "videos" / f"step-000000000300{number}.mp4" for number in ("", "-2")]
    assert all(f"wrote {video}" in printed for video in videos)
    assert sorted((run / "videos").iterdir()) == sorted(videos)
    for video, (_, length) in zip(videos, scores(printed), strict=True):
        metadata, frames = read_mp4(video)
        assert metadata["fps"] == 50  # as CartPole declares
        assert metadata["size"] == (600, 400)
        assert len(frames) == length + 1  # one frame before the first action
        assert (frames[0] != frames[-1]).any()


def test_mujoco_video_is_recorded_without_a_screen(mujoco_gl, runs, read_mp4, tmp_path, monkeypatch):
    """In a subprocess, since the rendering library is chosen once per process; the default is EGL."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    if mujoco_gl != "egl":
        monkeypatch.setenv("MUJOCO_GL", mujoco_gl)
    run, video = runs("cheetah"), tmp_path / "cheetah.mp4"
    command = [sys.executable, "-m", "starling", "play", run, "--video", video, "--max-steps", "4"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, frames = read_mp4(video)
    assert len(frames) == 5
    assert frames.std() > 10  # not a single color


def test_score_equals_that_of_an_evaluation_with_the_same_seed(runs, capsys, tmp_path):
    run = runs("minatar")
    play(run, seed=3, log=tmp_path / "steps.json")
    result = evaluate_run(run, episodes=1, seed=3, which="newest", protocol="as-trained", warn=print)
    assert scores(capsys.readouterr().out)[0][0] == result["mean"]
    assert not (run / "videos").exists()


def test_small_frames_are_enlarged_and_a_gif_has_the_duration_of_the_game(runs, capsys, tmp_path):
    video = tmp_path / "out.gif"
    play(runs("minatar"), episodes=2, video=video, fps=10)  # the env declares no frame rate
    lengths = [length for _, length in scores(capsys.readouterr().out)]
    shown = 0
    with Image.open(video) as gif:
        assert gif.size == (320, 320)
        for number in range(gif.n_frames):
            gif.seek(number)
            shown += gif.info["duration"]
        assert gif.n_frames > 10
    assert shown == 100 * (sum(lengths) + 2)


def test_log_has_every_step_with_the_outputs_of_all_heads(runs, read_mp4, tmp_path, capsys):
    log = tmp_path / "steps.json"
    play(runs("cartpole"), episodes=2, seed=5, log=log, video=tmp_path / "out.mp4")
    written = json.loads(log.read_text())
    assert {key: written[key] for key in ("checkpoint", "env", "seed")} == {
        "checkpoint": "step-000000000300",
        "env": "CartPole-v1",
        "seed": 5,
    }
    assert written["run"] == str(runs("cartpole"))
    episodes = written["episodes"]
    assert [(e["return"], e["length"]) for e in episodes] == scores(capsys.readouterr().out)
    for episode in episodes:
        steps = episode["steps"]
        assert [step["step"] for step in steps] == list(range(episode["length"]))
        assert sum(step["reward"] for step in steps) == episode["return"]
        assert [step["terminated"] or step["truncated"] for step in steps] == [False] * (len(steps) - 1) + [True]
        for step in steps:  # without exploration it takes the action with the larger Q value
            assert step["action"] == np.argmax(step["outputs"]["extrinsic"])
    assert len(read_mp4(tmp_path / "out.mp4")[1]) == sum(e["length"] + 1 for e in episodes)


def test_recurrent_policy_is_logged_with_raw_and_clipped_rewards(runs, tmp_path):
    log = tmp_path / "steps.json"
    play(runs("memory"), episodes=4, log=log)
    for episode in json.loads(log.read_text())["episodes"]:
        last = episode["steps"][-1]
        assert abs(last["reward"]) == 1
        assert abs(last["rewards"]["extrinsic"]) == 0.25
        for step in episode["steps"]:
            assert step["outputs"].keys() == {"policy", "extrinsic"}
            assert math.isfinite(step["outputs"]["extrinsic"])
            assert step["action"] == np.argmax(step["outputs"]["policy"]["logits"])


def test_options_have_their_documented_effect(runs, read_mp4, in_process, tmp_path):
    log, video = tmp_path / "steps.json", tmp_path / "out.mp4"

    def play_and_read_log(seed, checkpoint="newest"):
        """The log, and the Q values of the first observation."""
        files = ["--video", video, "--log", log, "--fps", 7]
        chosen = ["--seed", seed, "--checkpoint", checkpoint]
        code, printed, complaint = in_process(
            "play", runs("cartpole"), "--episodes", 2, "--max-steps", 3, *chosen, *files
        )
        assert code == 0, complaint
        assert f"wrote {video}\nwrote {log}\n" in printed
        written = json.loads(log.read_text())
        return written, written["episodes"][0]["steps"][0]["outputs"]["extrinsic"]

    written, first = play_and_read_log(seed=5)
    assert written["seed"] == 5
    assert [episode["length"] for episode in written["episodes"]] == [3, 3]
    metadata, frames = read_mp4(video)
    assert metadata["fps"] == 7
    assert len(frames) == 2 * (3 + 1)
    assert play_and_read_log(seed=5)[1] == first
    assert play_and_read_log(seed=6)[1] != first, "another seed begins elsewhere"
    older, before = play_and_read_log(seed=5, checkpoint="100")
    assert (written["checkpoint"], older["checkpoint"]) == ("step-000000000300", "step-000000000100")
    assert before != first, "an older checkpoint has other weights"


def test_explore_samples_from_the_policy(runs, in_process, tmp_path):
    """Trained on toy/identity, the policy is neither certain nor uniform over the four actions."""

    def frequency_and_probability(*options):
        """Frequency of the most likely action, and its mean probability, over 20 episodes."""
        log = tmp_path / "steps.json"
        code, _, complaint = in_process("play", runs("identity"), "--episodes", 20, "--log", log, *options)
        assert code == 0, complaint
        steps = [step for episode in json.loads(log.read_text())["episodes"] for step in episode["steps"]]
        logits = np.array([step["outputs"]["policy"]["logits"] for step in steps])
        most_likely = np.exp(logits.max(1)) / np.exp(logits).sum(1)
        return np.mean([step["action"] for step in steps] == logits.argmax(1)), most_likely.mean()

    taken, most_likely = frequency_and_probability("--explore")
    assert 0.5 < most_likely < 0.95
    assert abs(taken - most_likely) < 0.1  # 5 standard errors of 320 steps
    assert frequency_and_probability("--no-explore")[0] == frequency_and_probability()[0] == 1


def test_exploration_is_reproducible_by_its_seed(runs, tmp_path):
    def actions(name, **options):
        play(runs("memory"), episodes=6, explore=True, log=tmp_path / name, **options)
        return [[s["action"] for s in e["steps"]] for e in json.loads((tmp_path / name).read_text())["episodes"]]

    assert actions("a.json", seed=1) == actions("b.json", seed=1)
    assert actions("a.json", seed=1) != actions("c.json", seed=2)


def test_exploration_uses_the_epsilon_at_the_checkpoint(runs, tmp_path):
    """Epsilon is 0.04 at the end of the run; at its start it is 1, and half of the actions would not be greedy."""
    log = tmp_path / "steps.json"
    play(runs("cartpole"), episodes=20, explore=True, log=log)
    steps = [step for episode in json.loads(log.read_text())["episodes"] for step in episode["steps"]]
    best = np.mean([step["action"] == np.argmax(step["outputs"]["extrinsic"]) for step in steps])
    assert 0.9 < best < 1


def test_reward_streams_are_shown_below_the_image_if_requested(runs, read_mp4, in_process, tmp_path):
    log, video = tmp_path / "steps.json", tmp_path / "out.mp4"

    def recorded_video(switch):
        assert in_process("play", runs("curious"), "--video", video, "--log", log, switch)[0] == 0
        return read_mp4(video)[1]

    plain, frames = recorded_video("--no-streams"), recorded_video("--streams")
    assert frames.shape == (*plain.shape[:1], plain.shape[1] + 2 * BAND, *plain.shape[2:])
    # The image itself, up to compression by ffmpeg.
    assert np.abs(frames[:, : plain.shape[1]].astype(int) - plain).mean() < 2
    (episode,) = json.loads(log.read_text())["episodes"]
    assert any(step["rewards"]["rnd"] for step in episode["steps"])
    assert not any(step["rewards"]["extrinsic"] for step in episode["steps"])
    bars = frames[:, -BAND + 15 :].astype(int)
    assert [(image[..., 0] - image[..., 2] > 100).any() for image in bars[:2]] == [False, True]  # orange
    assert (bars[-1] != bars[1]).any()


def test_game_continues_over_its_lives_and_stops_at_max_steps(runs, read_mp4, tmp_path, capsys):
    log, video = tmp_path / "steps.json", tmp_path / "out.mp4"
    play(runs("lives"), log=log, video=video, explore=True)
    (episode,) = json.loads(log.read_text())["episodes"]
    ends = sum(step["terminated"] for step in episode["steps"])
    assert episode["finished"]
    assert ends == 5  # one end per life
    metadata, frames = read_mp4(video)
    assert metadata["size"] == (288, 288)
    assert metadata["fps"] == 15
    assert len(frames) == 1 + episode["length"] + ends - 1  # and one frame at the start of each further life

    play(runs("lives"), log=log, max_steps=7)
    assert "in 7 steps, cut off" in capsys.readouterr().out
    (episode,) = json.loads(log.read_text())["episodes"]
    assert (episode["length"], episode["finished"], len(episode["steps"])) == (7, False, 7)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", {}, "no such run"),
        ("cartpole", {"video": "out.avi"}, "does not end in .mp4 or .gif"),
        ("cartpole", {"fps": -1.0}, "-1 frames per second"),
        ("cartpole", {"video": "/proc/out.mp4"}, "cannot write /proc/out.mp4"),
        ("cartpole", {"log": "/proc/steps.json"}, "cannot write /proc/steps.json"),
        ("cartpole", {"video": "no/such/x.gif"}, "there is no folder no/such; make it first"),
        ("cartpole", {"log": "nosuch/x.json"}, "there is no folder nosuch; make it first"),
        ("cartpole", {"log": "."}, "is a folder"),
        ("cartpole", {"video": "a.mp4", "log": "a.mp4"}, "cannot both be written"),
        ("cartpole", {"checkpoint": "5"}, "no checkpoint '5'"),
        ("cartpole", {"log": "a.json", "streams": True}, "name one with --video"),
        ("memory", {"video": "out.mp4"}, "'toy/memory' cannot be rendered"),
        ("memory", {}, "'toy/memory' cannot be rendered"),
    ],
)
def test_invalid_input_is_rejected_before_playing_or_writing(
    runs, tmp_path, monkeypatch, capsys, name, options, message
):
    run = runs(name) if name in RUNS else tmp_path / name
    before = sorted(run.rglob("*"))
    options = {key: Path(value) if key in ("video", "log") else value for key, value in options.items()}
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        play(run, **options)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
    assert sorted(run.rglob("*")) == before


def test_ctrl_c_leaves_no_files(runs, tmp_path):
    """Interrupted while frames are written: no video, log, or partial file remains."""
    script = "import sys; from starling.cli.main import app; from starling.cli.play import play; import pathlib;"
    script += (
        "play(pathlib.Path(sys.argv[1]), episodes=100_000, video=pathlib.Path('a.mp4'), log=pathlib.Path('a.json'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), runs("cartpole")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline().startswith("episode 1:")
        assert len(list(tmp_path.iterdir())) == 2
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=240)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
