"""Files of a run respect the umask and contain no secrets."""

import os
import stat

import pytest

import starling
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.display import Logged
from starling.experiment.run_folder.folder import RunFolder

SECRET = "tr0ub4dor&3"
ENV = """
import gymnasium

def make(token, render_mode=None):
    assert token == "tr0ub4dor&3"
    return gymnasium.make("CartPole-v1", render_mode=render_mode)
"""
SHORT = ["env.id=env_with_token:make", "env.num=2", "algo.rollout=16", "net.torso.hidden=[8]", "stop.env_steps=200"]


class Recorder:
    """A display that records messages."""

    def __init__(self):
        self.lines = []
        self.message = self.lines.append

    def tick(self, status):
        pass

    def row(self, row):
        pass


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A folder for runs of an env that needs a token, with a umask that keeps files private."""
    (tmp_path / "env_with_token.py").write_text(ENV)
    monkeypatch.syspath_prepend(tmp_path)
    before = os.umask(0o077)
    yield tmp_path / "runs"
    os.umask(before)


def written(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_token_by_reference_is_in_no_file_and_all_files_are_private(private, monkeypatch):
    monkeypatch.setenv("STARLING_TEST_TOKEN", SECRET)
    recorder = Recorder()
    run = starling.train(
        "ppo-cartpole", [*SHORT, "env.args.token=${env:STARLING_TEST_TOKEN}"], runs=private, display=recorder
    )
    files = written(private)
    assert len(files) > 5
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    assert not [path for path in private.rglob("*") if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert not [line for line in recorder.lines if SECRET in line or "looks like a secret" in line]
    assert RunFolder(run.folder).config().env.args == {"token": SECRET}
    monkeypatch.delenv("STARLING_TEST_TOKEN")
    with pytest.raises(UserError, match="the environment variable STARLING_TEST_TOKEN is not set"):
        starling.load(run.folder)


def test_literal_token_is_only_in_config_yaml_with_one_warning(private):
    recorder = Recorder()
    run = starling.train("ppo-cartpole", [*SHORT, f"env.args.token={SECRET}"], runs=private, display=recorder)
    assert [file.name for file in written(private) if SECRET.encode() in file.read_bytes()] == ["config.yaml"]
    assert stat.S_IMODE((run.folder / "config.yaml").stat().st_mode) == 0o600
    assert len([line for line in recorder.lines if "env.args.token looks like a secret" in line]) == 1
    assert not [line for line in recorder.lines if SECRET in line]


def test_messages_are_logged_without_secrets(tmp_path):
    recorder, place = Recorder(), RunFolder(tmp_path)
    logged = Logged(recorder, place, load("ppo-cartpole", [f"env.args.token={SECRET}"]))
    logged.message(f"cannot log in with {SECRET}")
    assert recorder.lines == ["cannot log in with [hidden]"]
    assert "cannot log in with [hidden]" in place.log_file.read_text()
