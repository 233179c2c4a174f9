"""Color frames of Atari in training, evaluation, and videos."""

import json

import numpy as np
import pytest
import torch

from starling.config.load import load
from starling.launch import plan as plan_module
from starling.launch.plan import RunPlan, build_model, plan_threads

COLOR = ["env.atari.grayscale=false", "env.atari.stack=2", "env.num=2", "stop.env_steps=32", "eval.every=null"]
SHORT = ["env.atari.max_frames=40", "checkpoint.every=32", "threads=1", "net.init=default", "precision=float32"]
RUNS = {
    "dqn": ["dqn-pong", *COLOR, *SHORT, "algo.learning_starts=8", "algo.capacity=64", "algo.batch=4"],
    "ppo": ["ppo-pong", *COLOR, *SHORT, "algo.rollout=8", "algo.minibatches=2", "algo.epochs=1"],
}


@pytest.fixture(scope="module")
def run(train_once, tmp_path_factory):
    return train_once(tmp_path_factory.mktemp("runs"), RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_agent_with_color_frames_is_trained_evaluated_and_recorded(in_process, run, name, read_mp4, tmp_path):
    folder = run(name)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["updates"] > 0
    code, printed, complaint = in_process("eval", folder, "--episodes", 1, "--json")
    assert code == 0, complaint
    assert json.loads(printed.splitlines()[-1])["episodes"] == 1
    video = tmp_path / "pong.mp4"
    code, _, complaint = in_process("play", folder, "--video", video, "--max-steps", 3)
    assert code == 0, complaint
    red, _, blue = np.moveaxis(read_mp4(video)[1].astype(int), -1, 0)
    assert (red - blue).max() > 60  # the background is brown


def test_replay_with_color_frames_is_rendered(in_process, run, tmp_path):
    code, _, complaint = in_process("replay", "sample", run("dqn"), "--out", tmp_path / "sheet.png")
    assert code == 0, complaint
    assert (tmp_path / "sheet.png").stat().st_size > 1000


def test_color_images_use_all_cores_for_learning(monkeypatch):
    monkeypatch.setattr(plan_module, "cores", lambda: 4)
    assert plan_threads(RunPlan.from_config(load("dqn-pong", COLOR))) == 4


@pytest.mark.parametrize("name", RUNS)
def test_every_color_of_every_frame_affects_the_features(name):
    run_plan = RunPlan.from_config(load(RUNS[name][0], RUNS[name][1:]))
    model = build_model(run_plan)
    torso = model.trunks["shared"].torso
    assert run_plan.env.observation.shape == (2, 84, 84, 3)
    assert torso.encoders[0].convs[0].in_channels == 2 * 3
    plain = torch.zeros(1, 2, 84, 84, 3, dtype=torch.uint8)
    features = [torso(plain)]
    for frame in range(2):
        for color in range(3):
            seen = plain.clone()
            seen[:, frame, :, :, color] = 255
            features.append(torso(seen))
    assert len({tuple(one.flatten().tolist()) for one in features}) == 7
