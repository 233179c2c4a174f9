"""`starling play` on briefly trained agents; videos are decoded and checked."""

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from starling.cli.play import play
from starling.errors import UserError
from starling.tools.agent_view import GAP
from starling.tools.evaluate import evaluate_run
from starling.tools.video_preview import MOST_FRAMES
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
    "pendulum": [
        "ppo-cartpole", "env={id: Pendulum-v1, num: 2}", "net.torso.hidden=[8]", "algo.rollout=16", "algo.epochs=1",
        "algo.minibatches=1", "stop.env_steps=32", "stop.return=null",
    ],
    "unnamed": [
        "dqn", "algo={name: dqn:DQN}", "env={id: CartPole-v1, num: 1}", "stop.env_steps=8",
        "stop.return=null",
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
    events = sorted((run / "videos").glob("events.out.tfevents.*"))
    assert sorted((run / "videos").iterdir()) == sorted([*events, *videos])
    for file in events:
        reader = EventAccumulator(str(file))
        reader.Reload()
        (image,) = reader.Images("video")
        assert (image.step, image.width, image.height) == (300, 200, 134)
        with Image.open(io.BytesIO(image.encoded_image_string)) as gif:
            assert gif.format == "GIF"
            assert 1 < gif.n_frames <= MOST_FRAMES
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
    assert metadata["size"] == (320, 420)  # twice the console's own
    assert metadata["fps"] == 15
    assert np.ptp(frames[0].astype(int), axis=-1).max() > 100, "Breakout's bricks are colored"
    assert len(frames) == 1 + episode["length"] + ends - 1  # and one frame at the start of each further life

    play(runs("lives"), log=log, max_steps=7)
    assert "in 7 steps, cut off" in capsys.readouterr().out
    (episode,) = json.loads(log.read_text())["episodes"]
    assert (episode["length"], episode["finished"], len(episode["steps"])) == (7, False, 7)


def test_agents_view_is_shown_beside_the_image(runs, read_mp4, in_process, tmp_path):
    log, video = tmp_path / "steps.json", tmp_path / "out.mp4"

    def recorded(switch):
        code, _, complaint = in_process("play", runs("lives"), "--video", video, "--max-steps", 20, switch)
        assert code == 0, complaint
        return read_mp4(video)[1]

    plain, frames = recorded("--no-view"), recorded("--view")
    view = 5 * 2 * (36 + 2)  # two frames of 36 pixels and their borders per row, five times as large
    assert frames.shape == (21, 420, 320 + GAP + view, 3)
    assert np.abs(frames[:, :, :320].astype(int) - plain).mean() < 2
    seen = frames[-1, 20:400, -view:].astype(int)
    assert np.ptp(seen, axis=-1).mean() < 4, "it is gray"
    assert seen.std() > 10
    code, _, complaint = in_process("play", runs("cartpole"), "--video", video, "--view")
    assert (code, complaint) == (
        2,
        "error: the observations of env 'CartPole-v1' are no images: leave out --view\n",
    )
    code, _, complaint = in_process("play", runs("lives"), "--log", log, "--view")
    assert (code, complaint) == (2, "error: the agent's view is shown beside a video: name one with --video\n")


def test_actions_are_logged_in_units_of_the_env(runs, tmp_path):
    log = tmp_path / "steps.json"
    play(runs("pendulum"), log=log, explore=True, max_steps=30)
    (episode,) = json.loads(log.read_text())["episodes"]
    torques = [step["action"][0] for step in episode["steps"]]
    assert max(map(abs, torques)) > 1.05  # the env has -2 to 2, the policy -1 to 1
    assert max(map(abs, torques)) <= 2


def test_model_without_named_outputs_is_named(runs, in_process, tmp_path):
    log = tmp_path / "steps.json"
    code, printed, complaint = in_process("play", runs("unnamed"), "--log", log, "--max-steps", 2)
    assert code == 0, complaint
    assert "the model of dqn:DQN has no named outputs: the log has none" in printed.splitlines()
    (episode,) = json.loads(log.read_text())["episodes"]
    assert [step["outputs"] for step in episode["steps"]] == [{}, {}]


def test_window_shows_the_game_and_writes_nothing(runs, in_process, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    run = runs("cartpole")
    before = sorted(run.rglob("*"))
    code, printed, complaint = in_process("play", run, "--window", "--max-steps", 3, "--fps", 1000)
    assert (code, complaint) == (0, "")
    assert len(printed.splitlines()) == 1
    assert sorted(run.rglob("*")) == before


def test_window_without_a_display_is_one_line(runs, in_process, monkeypatch, tmp_path):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    code, printed, complaint = in_process("play", runs("cartpole"), "--window")
    assert (code, printed) == (2, "")
    assert complaint == (
        "error: there is no display for --window (neither DISPLAY nor WAYLAND_DISPLAY is set): record a video with"
        " --video, or log steps with --log, instead\n"
    )
    monkeypatch.setenv("SDL_VIDEODRIVER", "none such")
    code, printed, complaint = in_process("play", runs("cartpole"), "--window")
    assert (code, printed) == (2, "")
    assert complaint.startswith("error: the display for --window cannot be used (")
    assert complaint.count("\n") == 1
    monkeypatch.delenv("SDL_VIDEODRIVER")
    monkeypatch.setenv("DISPLAY", ":4999")  # no X server there
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # or SDL complains too
    code, printed, complaint = in_process("play", runs("cartpole"), "--window")
    assert (code, printed) == (2, "")
    assert complaint.startswith("error: the display for --window cannot be used (")
    assert complaint.count("\n") == 1


def test_window_on_an_x_server_shows_the_frames_of_the_video(runs, read_mp4, tmp_path):
    """In a subprocess, since SDL chooses its driver once; the image of the screen is read back from Xvfb's file."""
    server = shutil.which("Xvfb")
    if server is None:
        pytest.skip("there is no Xvfb")
    with (tmp_path / "number").open("w+") as number:
        screen = [server, "-displayfd", "1", "-screen", "0", "800x600x24", "-fbdir", str(tmp_path), "-nolisten", "tcp"]
        with subprocess.Popen(screen, stdout=number, stderr=subprocess.DEVNULL) as display:
            try:
                while not (chosen := (tmp_path / "number").read_text().strip()):
                    assert display.poll() is None
                    time.sleep(0.05)
                environment = {**os.environ, "DISPLAY": f":{chosen}"}
                environment.pop("SDL_VIDEODRIVER", None)
                video = tmp_path / "out.mp4"
                command = [sys.executable, "-m", "starling", "play", runs("cartpole"), "--window", "--video", video]
                command += ["--max-steps", 100_000, "--episodes", 10_000]
                with subprocess.Popen([*map(str, command)], env=environment, stdout=subprocess.PIPE) as playing:
                    assert playing.stdout.readline().startswith(b"episode 1")
                    pixels = (tmp_path / "Xvfb_screen0").read_bytes()[-(800 * 600 * 4) :]
                    playing.send_signal(signal.SIGINT)
                    playing.communicate(timeout=240)
                assert len(np.unique(np.frombuffer(pixels, np.uint32))) > 3, (
                    "the cart, its pole, and the axle are on the screen"
                )
            finally:
                display.terminate()


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
