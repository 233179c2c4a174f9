"""Folders that hold a configuration and nothing else: a run named like one uses it."""

import fcntl
import os

import pytest

import starling
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder import folder, lock
from starling.experiment.run_folder.folder import RunFolder

TEXT = "# mine\nbase: dqn-cartpole\nnet: {torso: {hidden: [8]}}\nenv: {num: 2}\nstop: {env_steps: 64, return: null}\n"


class Lines:
    """A display that records messages."""

    def __init__(self):
        self.lines = []

    def tick(self, status): ...

    def row(self, row): ...

    def message(self, line):
        self.lines.append(line)


@pytest.fixture
def models(tmp_path):
    """A folder with a prepared run, `myrun`."""
    (tmp_path / "models" / "myrun").mkdir(parents=True)
    (tmp_path / "models" / "myrun" / "config.yaml").write_text(TEXT)
    return tmp_path / "models"


def train(models, *overrides, file="config.yaml", name="myrun"):
    """Train from a file in `models/myrun`; returns the run's folder and the messages."""
    shown = Lines()
    source = str(models / "myrun" / file)
    settings = ["algo.fragment=16", *([f"run={name}"] if name else []), *overrides]
    return starling.train(source, settings, runs=models, display=shown).folder, shown.lines


def test_folder_with_only_the_configuration_becomes_the_run(models):
    place, _ = train(models, "seed=3")
    assert place == models / "myrun"
    assert [each.name for each in models.iterdir()] == ["myrun"]
    config = RunFolder(place).config()
    assert (config.seed, config.run, config.net.torso.hidden) == (3, "myrun", [8])
    assert (place / "config.given.yaml").read_text() == TEXT
    assert os.stat(place / "config.given.yaml").st_nlink == 1
    assert starling.resume(place, checkpoint="newest").env_steps == 64


def test_name_in_the_file_and_another_current_folder_work_too(models, monkeypatch):
    (models / "myrun" / "config.yaml").write_text(f"run: myrun\n{TEXT}")
    monkeypatch.chdir(models / "myrun")
    result = starling.train("config.yaml", runs="..")
    assert os.path.samefile(result.folder, models / "myrun")


def test_file_of_another_name_is_left_alone(models):
    (models / "myrun" / "config.yaml").rename(models / "myrun" / "mine.yaml")
    place, _ = train(models, file="mine.yaml")
    assert (place / "mine.yaml").read_text() == TEXT
    assert not (place / "config.given.yaml").exists()
    assert RunFolder(place).config().run == "myrun"


def test_second_start_gets_a_folder_of_its_own_and_says_why(models):
    first, _ = train(models)
    before = (first / "config.given.yaml").read_text(), (first / "config.yaml").read_text()
    second, lines = train(models)
    assert second == models / "myrun-2"
    (why,) = [line for line in lines if line.endswith("the run gets a folder of its own")]
    assert why.startswith(f"{first} holds ")
    assert before == ((first / "config.given.yaml").read_text(), (first / "config.yaml").read_text())


@pytest.mark.parametrize("name", [None, "other"])
def test_runs_of_another_name_do_not_use_the_folder(models, name):
    place, lines = train(models, name=name)
    assert place != models / "myrun"
    assert [each.name for each in (models / "myrun").iterdir()] == ["config.yaml"]
    assert not [line for line in lines if "of its own" in line]


def _add_file(prepared):
    (prepared / "notes.txt").write_text("keep me")
    return "holds more than config.yaml ('notes.txt')"


def _add_folder(prepared):
    (prepared / "checkpoints").mkdir()
    return "holds 'checkpoints', which is not a plain file"


def _add_link(prepared):
    (prepared / ".lock").symlink_to(prepared.parent / "elsewhere")
    return "holds '.lock', which is not a plain file"


def _link_the_file(prepared):
    (prepared / "config.yaml").rename(prepared.parent / "real.yaml")
    (prepared / "config.yaml").symlink_to("../real.yaml")
    return "holds 'config.yaml', which is not a plain file"


def _add_given(prepared):
    (prepared / "config.given.yaml").write_text("# of another start\n")
    return "holds more than config.yaml ('config.given.yaml')"


@pytest.mark.parametrize("change", [_add_file, _add_folder, _add_link, _link_the_file, _add_given])
def test_folder_with_anything_else_is_not_touched(models, change):
    reason = change(models / "myrun")
    before = {each.name: each.lstat().st_mtime_ns for each in (models / "myrun").iterdir()}
    place, lines = train(models)
    assert place == models / "myrun-2"
    assert f"{models / 'myrun'} {reason}: the run gets a folder of its own" in lines
    assert before == {each.name: each.lstat().st_mtime_ns for each in (models / "myrun").iterdir()}
    assert not (models / "elsewhere").exists()


def test_folder_of_another_user_is_not_used(models, monkeypatch):
    monkeypatch.setattr(folder.os, "geteuid", lambda: os.getuid() + 1)
    assert folder._why_not_prepared(models / "myrun", "config.yaml") == "belongs to another user"


def test_folder_that_is_locked_is_refused_in_one_line(models, monkeypatch):
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.0)
    with open(models / "myrun" / ".lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"^[^\n]*myrun is in use by another process; wait for its end[^\n]*$"):
            train(models)
    assert (models / "myrun" / "config.yaml").read_text() == TEXT


def test_folder_that_another_run_has_taken_meanwhile_is_refused(models):
    config = load(str(models / "myrun" / "config.yaml"), ["run=myrun"])
    file = models / "myrun" / "config.yaml"
    prepared = folder.find_prepared(models, config, file, print)
    (prepared / "metrics.jsonl").touch()
    with pytest.raises(UserError, match=r"metrics.jsonl'\), which came after this run was started: start it again"):
        folder.take_over(prepared, config, file, print)
    assert file.read_text() == TEXT


@pytest.mark.parametrize("left", [(), (".lock",), (".lock", "config.given.yaml")])
def test_start_that_was_killed_can_be_repeated(models, left):
    """Before the configuration was replaced, there was a lock, and perhaps a second name of the same file."""
    for name in left:
        if name == "config.given.yaml":
            os.link(models / "myrun" / "config.yaml", models / "myrun" / name)
        else:
            (models / "myrun" / name).touch()
    place, _ = train(models)
    assert (place.name, (place / "config.given.yaml").read_text()) == ("myrun", TEXT)


def test_refused_start_leaves_the_folder_as_it_was(models):
    with pytest.raises(UserError, match="unknown environment"):
        train(models, "env.id=CartPool-v1")
    with pytest.raises(UserError, match="cannot read init_from"):
        train(models, "init_from=nowhere")
    assert [each.name for each in (models / "myrun").iterdir()] == ["config.yaml"]


def test_mode_of_a_private_file_is_kept(models):
    (models / "myrun" / "config.yaml").chmod(0o600)
    place, _ = train(models)
    assert (place / "config.given.yaml").stat().st_mode & 0o777 == 0o600
