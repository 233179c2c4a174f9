"""`starling replay` on replays of briefly trained agents."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from starling.cli.main import app
from starling.errors import UserError
from starling.experiment.run_folder.metrics import read_rows

RUNS = {
    "cartpole": [
        "dqn-cartpole", "stop.env_steps=200", "algo.learning_starts=100", "algo.fragment=8", "algo.prioritized={}",
        "algo.updates_per_step=0.1", "algo.n_step=1", "checkpoint.every=150",
    ],
    "pong": [
        "dqn-pong", "stop.env_steps=90", "algo.learning_starts=40", "algo.batch=2", "algo.capacity=400", "env.num=2",
        "env.atari.size=36", "algo.prioritized={}", "net.torso={kind: nature, hidden: [8]}", "threads=1",
        "algo.updates_per_step=0.05", "precision=float32",
    ],
    "forgetful": ["dqn-cartpole", "stop.env_steps=100", "checkpoint.replay=false"],
    "queue": ["ppo-cartpole", "stop.env_steps=128", "env.num=2", "algo.rollout=32", "algo.minibatches=1"],
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, train_once):
    run = train_once(tmp_path_factory.mktemp("runs"), RUNS)
    return lambda name: str(run(name))


def starling(*arguments):
    return app([*map(str, arguments)], standalone_mode=False)


def test_info_describes_the_tables(runs, capsys):
    run = runs("cartpole")
    capsys.readouterr()
    starling("replay", "info", run, "--json")
    lines = capsys.readouterr().out.splitlines()
    (table,) = json.loads(lines[-1])["tables"]
    assert 190 <= table["items"] == table["steps"] <= 200
    assert table["name"] == "replay"
    assert (table["sampler"], table["codec"], table["capacity"]) == ("prioritized", "none", 100_000)
    assert table["episodes"] > 2
    assert table["mean_return"] == table["mean_length"]  # CartPole's reward is 1 per step
    assert table["mean_length"] * table["episodes"] <= table["steps"]
    assert 100_000 * 16 < table["bytes"] < 100_000 * 200
    assert 0 <= table["age"]["median"] <= table["age"]["most"] <= 20
    assert sum(table["priorities"]["counts"]) == table["items"]
    bars = [line for line in lines if line.endswith("#")]
    assert sum(int(line.split()[2]) for line in bars) == table["items"]
    assert max(line.count("#") for line in bars) == 40


def test_older_checkpoint_has_its_own_replay(runs, tmp_path, capsys):
    run = runs("cartpole")
    capsys.readouterr()
    starling("replay", "info", run, "--checkpoint", "150", "--json")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["checkpoint"] == "step-000000000150"
    (table,) = found["tables"]
    assert 100 <= table["items"] <= found["env_steps"] <= 150
    starling("replay", "export", run, "--checkpoint", "150", "--out", tmp_path / "older")
    assert f"replay: {table['items']} items" in capsys.readouterr().out
    starling("replay", "sample", run, "--checkpoint", "150", "--n", "1000")
    keys = {line.split()[1] for line in capsys.readouterr().out.splitlines()[1:-1]}
    starling("replay", "sample", run, "--n", "1000")
    later = {line.split()[1] for line in capsys.readouterr().out.splitlines()[1:-1]}
    assert 90 < len(keys) <= table["items"] < len(later)


def test_sample_lists_likely_items_first(runs, capsys):
    run = runs("cartpole")
    capsys.readouterr()
    starling("replay", "sample", run, "--n", "30")
    header, *lines, _ = capsys.readouterr().out.splitlines()
    assert header.split() == ["#", "key", "priority", "probability", "age", "return", "steps"]
    cells = [line.split() for line in lines]
    assert len(cells) == 30
    priority, probability = (np.array([float(cell[i]) for cell in cells]) for i in (2, 3))
    assert (np.diff(probability) <= 0).all()
    np.testing.assert_allclose(probability / probability[0], (priority / priority[0]) ** 0.6, rtol=0.01)
    assert {cell[5] for cell in cells} == {cell[6] for cell in cells} == {"1"}


def test_contact_sheet_shows_frames_below_probability_bars(runs, tmp_path, capsys):
    sheet = tmp_path / "sheet.png"
    starling("replay", "sample", runs("pong"), "--n", 5, "--out", sheet)
    assert f"wrote {sheet}" in capsys.readouterr().out
    image = np.asarray(Image.open(sheet))
    assert image.dtype == np.uint8
    height, width = 16 + 36 * 3, 2 * (36 * 3 + 1)  # two frames per item, enlarged
    assert image.shape == (4 + height + 4, 5 * (width + 4) + 4, 3)
    bars = (image[10] == [230, 159, 0]).all(axis=-1)
    lengths = [int(bars[4 + i * (width + 4) :][:width].sum()) for i in range(5)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] > 0
    frame = image[4 + 16 : 4 + height, 4 : 4 + 36 * 3]
    assert (frame == frame[..., :1]).all()  # gray
    assert len(np.unique(frame)) > 2
    assert (frame[::3, ::3] == frame[2::3, 2::3]).all()


def test_run_starts_from_an_export(runs, tmp_path, capsys):
    out = tmp_path / "exported"
    starling("replay", "export", runs("cartpole"), "--out", out)
    assert f"wrote {out}" in capsys.readouterr().out
    settings = [*RUNS["cartpole"], "stop.env_steps=40", "algo.updates_per_step=0.5", "log.every=8"]
    starling("train", *settings, f"replay_from={out}", "run=child", f"--runs={tmp_path}")
    assert f"items from {out}, recorded in CartPole-v1 by dqn" in capsys.readouterr().out
    rows = read_rows(tmp_path / "child" / "metrics.jsonl")
    assert rows[0]["store/replay/size"] > 190
    assert rows[0]["env_steps"] <= 16
    assert rows[0]["updates"] >= 1  # without the export nothing would be learned before algo.learning_starts=100
    assert rows[-1]["env_steps"] == 40
    out.rename(tmp_path / "gone")
    starling("resume", tmp_path / "child")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("forgetful", ["info"], "was saved without its replay: train with checkpoint.replay=true"),
        ("queue", ["info"], "has no replay: ppo learns from a queue"),
        ("cartpole", ["sample", "--out", "sheet.png"], "observations of CartPole-v1 are not images"),
        ("cartpole", ["sample", "--out", "sheet.jpg"], "does not end in .png"),
        ("cartpole", ["export", "--out", "."], "exists already; choose another folder with --out"),
        ("cartpole", ["info", "--checkpoint", "7"], "no checkpoint '7'"),
    ],
)
def test_impossible_requests_are_one_line_errors(name, arguments, message, runs, tmp_path, monkeypatch):
    run = runs(name)
    monkeypatch.chdir(tmp_path)
    command, *options = arguments
    with pytest.raises(UserError) as error:
        starling("replay", command, run, *options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_wrong_path_exits_with_2_before_torch_is_imported(tmp_path):
    script = """
import sys
from starling.cli.main import main
sys.argv = ["starling", "replay", "info", "no-such-run"]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: no such run: no-such-run\n")
