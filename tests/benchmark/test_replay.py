"""The replay benchmark: recordings equal what was played, summary figures, and a small measurement by the command."""

import itertools
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from starling.actor.noise import seeds
from starling.cli.main import app
from starling.config.env import EnvConfig
from starling.envs.registry import make_env
from starling.errors import UserError
from starling.tools.benchmark.random_play import FRAGMENT, Recording, record
from starling.tools.benchmark.replay import Found
from starling.tools.benchmark.replay_memory import Full, Seconds, table_of
from starling.tools.benchmark.replay_peers import transitions
from starling.tools.benchmark.replay_speed import Speed, compare


def small_recording():
    """Two envs with 40 steps and frames that contain their step; env 0 ends at step 20 and resets at step 21."""
    count, num_envs = 40, 2
    frames = np.zeros((count + 1, num_envs, 84, 84), np.uint8)
    frames += np.arange(1, count + 2, dtype=np.uint8)[:, None, None, None]
    first = np.zeros((count + 1, num_envs), bool)
    first[0], first[22, 0] = True, True
    valid = np.ones((count, num_envs), bool)
    valid[21, 0] = False
    terminated = np.zeros((count, num_envs), bool)
    terminated[20, 0] = True
    action = np.arange(count * num_envs).reshape(count, num_envs)
    return Recording(frames, first, action, action.astype(np.float32), terminated, np.zeros_like(valid), valid)


def test_stacks_begin_with_zeros_and_slide():
    stacks = small_recording().stacks(21, 25)[..., 0, 0]
    assert stacks[:, 0].tolist() == [[19, 20, 21, 22], [0, 0, 0, 23], [0, 0, 23, 24], [0, 23, 24, 25]]
    assert stacks[1, 1].tolist() == [20, 21, 22, 23]


def test_recording_has_the_stacks_of_the_env():
    recording = record("Pong", 40, num_envs=2)
    assert len(recording.action) == 2 * FRAGMENT
    env = make_env(EnvConfig(id="ALE/Pong-v5", num=2), 2)
    shown = [env.reset(seeds(0, np.arange(2), 0)).obs.copy()]
    shown += [env.step(action).obs.copy() for action in recording.action]
    env.close()
    assert np.array_equal(recording.stacks(0, len(shown)), np.stack(shown))


def test_transitions_skip_resets_and_truncate_at_the_end_of_a_recording():
    steps = list(transitions(small_recording(), 39 + 40 + 5))
    assert [step.action for step in steps[:39]] == [2 * t for t in range(40) if t != 21]
    assert [i for i, step in enumerate(steps) if step.terminated] == [20]
    assert [i for i, step in enumerate(steps) if step.truncated] == [38, 78]
    assert steps[21].obs[..., 0, 0].tolist() == [0, 0, 0, 23]
    assert steps[79].action == 0


def test_fragments_repeat_indefinitely_and_fill_a_table():
    recording = small_recording()
    recording = Recording(*(np.concatenate([part, part, part, part], axis=1) for part in vars(recording).values()))
    table = table_of(2_000, "zstd")
    for fragment in itertools.islice(recording.fragments(), 40):
        assert fragment.trajectory.length == FRAGMENT
        table.insert(fragment)
    table.check_valid()
    assert table.size > 1_800
    assert table.sample(256) is not None


def test_summary_has_means_and_ratios():
    full = [Full(200_000, Seconds(2.0, 3.0, 1.0), Seconds(1.0, 1.0, 1.0)), Full(400_000, *[Seconds(1.0, 1.0, 1.0)] * 2)]
    speeds = {"starling": Speed(300.0, 300.0, 1.0), "a": Speed(100.0, 250.0, 1.0), "b": Speed(200.0, 200.0, 1.0)}
    found = Found(dict(zip("xy", full, strict=True)), 1_000, speeds)
    assert found.gigabytes_per_million == pytest.approx({"x": 0.2, "y": 0.4, "mean": 0.3})
    assert found.ratio_to_best_peer == 1.5
    assert found.ratio_where_memory_is_kept == 1.2
    assert found.growth == {"insert": 1.5, "sample": 2.0, "update": 1.0}
    assert Found({}, 1, {"starling": Speed(1.0, 1.0, 1.0)}).ratio_to_best_peer is None


def test_unknown_game_is_an_error():
    done = CliRunner().invoke(app, ["bench", "replay", "--games", "Pung"])
    assert done.exit_code != 0
    assert "Pung" in str(done.exception)


@pytest.mark.slow
def test_command_prints_json_on_its_last_line(monkeypatch):
    monkeypatch.setattr("starling.tools.benchmark.replay.RECORDED", 1_000)
    done = CliRunner().invoke(
        app, ["bench", "replay", "--games", "Pong", "--observations", "10000", "--seconds", "0.1", "--json"]
    )
    assert done.exit_code == 0
    values = json.loads(done.stdout.splitlines()[-1])
    assert values["gigabytes_per_million"].keys() == {"Pong", "mean"}
    assert values["items_per_s"] > 0
    assert values["where_memory_is_kept"]["items_per_s"]["starling"] > 0


def test_replay_that_cannot_be_measured_is_an_error(monkeypatch):
    monkeypatch.setattr("starling.tools.benchmark.replay_speed.installed", lambda: ["nobody"])
    with pytest.raises(UserError, match=r"cannot measure the replay of nobody: KeyError: 'nobody'"):
        compare(record("Pong", 2 * FRAGMENT * 8), 1_000, 0.1, lambda line: None)
