"""The lowest file layer follows no links and never blocks."""

import os

import pytest

from starling.experiment.run_folder import disk
from starling.experiment.run_folder.disk import (
    append,
    make_folder,
    open_regular,
    publish,
    read_bounded,
    remove_tree,
    write_synced,
)


@pytest.fixture
def target(tmp_path):
    file = tmp_path / "outside" / "precious"
    file.parent.mkdir()
    file.write_bytes(b"kept")
    return file


def test_link_is_replaced_and_not_followed_when_writing(tmp_path, target):
    link = tmp_path / "link"
    link.symlink_to(target)
    write_synced(link, b"new")
    assert target.read_bytes() == b"kept"
    assert link.read_bytes() == b"new"
    assert not link.is_symlink()


def test_partial_file_that_is_a_link_is_replaced(tmp_path, target):
    (tmp_path / ".unfinished-file").symlink_to(target)
    publish(tmp_path / "file", b"new")
    assert target.read_bytes() == b"kept"
    assert (tmp_path / "file").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "outside"]


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_nothing_is_appended_to_a_link(tmp_path, target, make):
    make(target, tmp_path / "link")
    with pytest.raises(OSError, match=r"symbolic links|second name"):
        append(tmp_path / "link", b"more")
    assert target.read_bytes() == b"kept"


def test_hard_link_may_be_read(tmp_path, target):
    """Backups are made of hard links."""
    os.link(target, tmp_path / "link")
    assert read_bounded(tmp_path / "link", 10) == b"kept"


def test_fifo_is_rejected_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        read_bounded(tmp_path / "fifo", 10)
    with pytest.raises(OSError, match=r"No such device|not a regular file"):
        open_regular(tmp_path / "fifo", os.O_WRONLY)


def test_more_bytes_than_allowed_are_rejected(target):
    assert read_bounded(target, 4) == b"kept"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_bounded(target, 3)


def test_removing_a_link_to_a_folder_removes_only_the_link(tmp_path, target):
    (tmp_path / "link").symlink_to(target.parent)
    remove_tree(tmp_path / "link")
    assert target.read_bytes() == b"kept"
    assert not (tmp_path / "link").is_symlink()


def test_link_does_not_count_as_a_folder(tmp_path, target):
    (tmp_path / "link").symlink_to(target.parent)
    assert not disk.is_folder(tmp_path / "link")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "link")
