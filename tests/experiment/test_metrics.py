"""Scores and metrics rows."""

import json

import pytest
from support.traced_disk import TracedDisk

from starling.errors import UserError
from starling.experiment.run_folder.metrics import MetricsFile, Scoreboard, read_rows
from starling.experiment.run_folder.rows import Rows
from starling.types import Episode


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_score_is_the_mean_of_the_last_100_episodes():
    board = Scoreboard(window=3)
    assert board.mean is None
    board.add(Episode(env_index=0, total=t, length=int(t)) for t in (1.0, 2.0))
    assert not board.full
    board.add([Episode(0, 6.0, 6), Episode(0, 10.0, 10)])
    assert board.full
    assert board.mean == 6.0
    assert board.row() == {"episodes": 4, "return": 6.0, "episode_length": 6.0, "episode_longest": 10}
    copy = Scoreboard(window=3)
    copy.set_state(board.get_state())
    copy.add([Episode(0, 0.0, 1)])
    board.add([Episode(0, 0.0, 1)])
    assert copy.row() == board.row()


def test_score_of_a_run_is_over_100_episodes():
    board = Scoreboard()
    board.add(Episode(env_index=0, total=float(number), length=1) for number in range(99))
    assert (board.full, board.counted) == (False, 99)
    board.add(Episode(env_index=0, total=float(number), length=1) for number in range(99, 250))
    assert (board.full, board.counted, board.episodes) == (True, 100, 250)
    assert board.mean == sum(range(150, 250)) / 100


def steps_in(path):
    return [row["env_steps"] for row in read_rows(path)]


def test_resumed_file_drops_rows_after_the_checkpoint(path):
    metrics = MetricsFile(path, print)
    for step in range(4):
        metrics.write({"env_steps": step})
    metrics.close()
    again = MetricsFile(path, print, keep_rows=2, env_steps=2)
    again.write({"env_steps": 20})
    again.close()
    assert steps_in(path) == [0, 1, 20]
    assert again.rows == 3


def test_row_is_in_the_file_immediately(path):
    """Otherwise a kill would lose it."""
    metrics = MetricsFile(path, print)
    for count in range(1, 4):
        metrics.write({"env_steps": count})
        assert path.read_bytes().count(b"\n") == count


DAMAGE = {
    "torn": b'{"env_steps": 3, "ret',
    "not UTF-8": b'{"env_steps": 3, "note": "\xff\xfe"}\n',
    "not JSON": b"nonsense\n",
    "not a row": b"[3]\n",
    "no steps": b'{"env_steps": null}\n',
    "two lines": b'{"env_\nsteps": 3}\n',
}


@pytest.mark.parametrize("where", [0, 2, 3])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_rows_are_counted_and_the_others_kept(path, damage, where):
    rows = [b'{"env_steps": %d}\n' % step for step in range(3)]
    rows.insert(where, damage)
    later = [b'{"env_steps": 4}\n', b'{"env_steps": 5}\n']  # after the checkpoint, which was at 4 rows
    path.write_bytes(b"".join(rows + (later if damage.endswith(b"\n") else [])))
    said = []
    metrics = MetricsFile(path, said.append, keep_rows=4, env_steps=3)
    metrics.write({"env_steps": 20})
    torn = not damage.endswith(b"\n") and where < 3  # the next row is on the torn line
    expected = [step for step in range(3) if not (torn and step == where)]
    assert steps_in(path) == [*expected, 20]
    assert metrics.rows == len(expected) + 1
    (line,) = said
    count = damage.count(b"\n") or 1
    assert line == f"warning: {path}: {count} damaged {'row is' if count == 1 else 'rows are'} left out"


def test_non_finite_numbers_are_saved_as_null(path):
    metrics = MetricsFile(path, print)
    metrics.write({"env_steps": 1, "loss": float("nan"), "note": [float("inf"), {"x": -float("inf")}, 0.5]})

    def refuse(constant):
        raise AssertionError(constant)

    row = json.loads(path.read_text(), parse_constant=refuse)
    assert row == {"env_steps": 1, "loss": None, "note": [None, {"x": None}, 0.5]}


def test_rows_with_nan_from_earlier_versions_are_rewritten_without(path):
    path.write_text('{"env_steps": 1, "loss": NaN}\n')
    MetricsFile(path, print, keep_rows=1, env_steps=1)
    assert path.read_text() == '{"env_steps": 1, "loss": null}\n'


def test_rows_wait_on_a_full_disk_and_none_is_torn_or_lost(path, monkeypatch):
    said = []
    metrics = MetricsFile(path, said.append)
    traced = TracedDisk(monkeypatch, room=50)  # two rows and a part of the third
    for step in range(10, 15):
        metrics.write({"env_steps": step})
        assert steps_in(path) == [10, 11][: step - 9]
    assert metrics.failure == f"cannot write to {path}: No space left on device"
    assert said == [f"warning: {metrics.failure}; training goes on, and unwritten data waits in memory"]
    traced.room = None
    metrics.write({"env_steps": 15})
    assert steps_in(path) == list(range(10, 16))
    assert metrics.rows == 6
    assert metrics.failure is None
    assert said[1:] == [f"{path} can be written again, and nothing is missing"]


def test_waiting_rows_are_written_when_the_file_is_closed(path, monkeypatch):
    metrics = MetricsFile(path, print)
    traced = TracedDisk(monkeypatch, room=0)
    metrics.write({"env_steps": 1})
    assert steps_in(path) == []
    traced.room = None
    metrics.close()
    assert steps_in(path) == [1]
    assert metrics.failure is None


def test_file_that_cannot_be_rewritten_is_a_one_line_error(path, monkeypatch):
    TracedDisk(monkeypatch, room=0)
    path.write_text('{"env_steps": 1}\n')
    with pytest.raises(UserError, match=r"cannot write to .*metrics.jsonl: No space left on device; make room"):
        MetricsFile(path, print, keep_rows=1, env_steps=1)
    assert steps_in(path) == [1]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"x" * (2**20 + 1), r"a line of more than 1,048,576 bytes"),
        (b"\n" * 500_001, "more than 500,000 lines"),
        (b"".join(b'{"env_steps": 1, "a%d": 1, "b%d": 1}\n' % (i, i) for i in range(1001)), "more than 2,000 keys"),
    ],
)
def test_file_that_is_not_from_a_run_is_rejected_and_unchanged(path, content, what):
    path.write_bytes(content)
    message = rf"metrics.jsonl has {what}, which rows of a run never have: move it away"
    with pytest.raises(UserError, match=message):
        MetricsFile(path, print, keep_rows=10**9, env_steps=10**9)
    with pytest.raises(UserError, match=message):
        read_rows(path)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_row_being_written_is_ignored_if_only_finished_rows_are_read(path):
    path.write_bytes(b'{"env_steps": 1}\n\n{"env_steps": 2}')
    finished_only, including_partial = Rows(path, finished=True), Rows(path)
    assert [[row["env_steps"] for row in rows] for rows in (finished_only, including_partial, including_partial)] == [
        [1],
        [1, 2],
        [1, 2],
    ]
    path.write_bytes(b'{"env_steps": 1}\n{"env_st')
    assert ([*finished_only], finished_only.damaged) == ([{"env_steps": 1}], 0)
    assert ([*including_partial], including_partial.damaged) == ([{"env_steps": 1}], 1)
