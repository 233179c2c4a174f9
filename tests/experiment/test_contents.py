"""Kinds of files in a run folder; tests/hostile has the attacks."""

import os

import pytest

from starling.errors import UserError
from starling.experiment.run_folder import contents
from starling.experiment.run_folder.contents import DEEPEST, check_contents


def test_only_files_and_folders_are_allowed(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    check_contents(tmp_path)
    (tmp_path / "a" / "b" / "link").symlink_to("c")
    with pytest.raises(UserError, match=r"a/b/link is a symbolic link"):
        check_contents(tmp_path)


def test_depth_of_folders_is_limited(tmp_path):
    (tmp_path / os.sep.join("d" * DEEPEST)).mkdir(parents=True)
    check_contents(tmp_path)
    (tmp_path / os.sep.join("d" * (DEEPEST + 1))).mkdir(parents=True)
    with pytest.raises(UserError, match="deep"):
        check_contents(tmp_path)


def test_folder_removed_during_the_scan_is_no_error(tmp_path, monkeypatch):
    """A running process prunes its checkpoints while others read the folder."""
    (tmp_path / "step").mkdir()
    scandir = os.scandir

    def scan(path):
        found = scandir(path)
        if os.fspath(path) != str(tmp_path):
            found.close()
            os.rmdir(path)
            return scandir(path)
        return found

    monkeypatch.setattr(contents.os, "scandir", scan)
    check_contents(tmp_path)
