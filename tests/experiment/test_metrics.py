"""Scores and rows."""

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


def test_the_score_is_the_mean_of_the_last_hundred_episodes():
    board = Scoreboard(window=3)
    assert board.mean is None
    board.add(Episode(row=0, total=t, length=int(t)) for t in (1.0, 2.0))
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


def test_the_score_of_a_run_is_over_a_hundred_episodes():
    board = Scoreboard()
    board.add(Episode(row=0, total=float(number), length=1) for number in range(99))
    assert (board.full, board.counted) == (False, 99)
    board.add(Episode(row=0, total=float(number), length=1) for number in range(99, 250))
    assert (board.full, board.counted, board.episodes) == (True, 100, 250)
    assert board.mean == sum(range(150, 250)) / 100


def steps_in(path):
    return [row["env_steps"] for row in read_rows(path)]


def test_a_resumed_file_drops_rows_its_checkpoint_had_not_seen(path):
    metrics = MetricsFile(path, print)
    for step in range(4):
        metrics.write({"env_steps": step})
    metrics.close()
    again = MetricsFile(path, print, keep_rows=2, env_steps=2)
    again.write({"env_steps": 20})
    again.close()
    assert steps_in(path) == [0, 1, 20]
    assert again.rows == 3


def test_a_row_is_in_the_file_as_soon_as_it_is_written(path):
    """Or a kill would lose it."""
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
    later = [b'{"env_steps": 4}\n', b'{"env_steps": 5}\n']  # after the checkpoint, which had seen 4 rows
    path.write_bytes(b"".join(rows + (later if damage.endswith(b"\n") else [])))
    said = []
    metrics = MetricsFile(path, said.append, keep_rows=4, env_steps=3)
    metrics.write({"env_steps": 20})
    torn = not damage.endswith(b"\n") and where < 3  # one row, the next, is torn with it
    expected = [step for step in range(3) if not (torn and step == where)]
    assert steps_in(path) == [*expected, 20]
    assert metrics.rows == len(expected) + 1
    (line,) = said
    count = damage.count(b"\n") or 1
    assert line == f"warning: {path}: {count} damaged {'row is' if count == 1 else 'rows are'} left out"


def test_numbers_that_json_does_not_have_are_null(path):
    metrics = MetricsFile(path, print)
    metrics.write({"env_steps": 1, "loss": float("nan"), "note": [float("inf"), {"x": -float("inf")}, 0.5]})

    def refuse(constant):
        raise AssertionError(constant)

    row = json.loads(path.read_text(), parse_constant=refuse)
    assert row == {"env_steps": 1, "loss": None, "note": [None, {"x": None}, 0.5]}


def test_rows_with_nan_of_earlier_versions_are_read_and_written_again_without(path):
    path.write_text('{"env_steps": 1, "loss": NaN}\n')
    MetricsFile(path, print, keep_rows=1, env_steps=1)
    assert path.read_text() == '{"env_steps": 1, "loss": null}\n'


def test_rows_wait_for_room_on_a_full_disk_and_none_is_torn_or_lost(path, monkeypatch):
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


def test_rows_that_still_wait_at_the_end_are_tried_once_more(path, monkeypatch):
    metrics = MetricsFile(path, print)
    traced = TracedDisk(monkeypatch, room=0)
    metrics.write({"env_steps": 1})
    assert steps_in(path) == []
    traced.room = None
    metrics.close()
    assert steps_in(path) == [1]
    assert metrics.failure is None


def test_a_file_that_cannot_even_be_begun_is_one_clear_line(path, monkeypatch):
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
def test_a_file_that_no_run_has_written_is_refused_and_stays_as_it_is(path, content, what):
    path.write_bytes(content)
    message = rf"metrics.jsonl has {what}, which rows of a run never have: move it away"
    with pytest.raises(UserError, match=message):
        MetricsFile(path, print, keep_rows=10**9, env_steps=10**9)
    with pytest.raises(UserError, match=message):
        read_rows(path)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_row_that_is_still_being_written_is_overlooked_where_that_is_asked_for(path):
    path.write_bytes(b'{"env_steps": 1}\n\n{"env_steps": 2}')
    growing, whole = Rows(path, finished=True), Rows(path)
    assert [[row["env_steps"] for row in rows] for rows in (growing, whole, whole)] == [[1], [1, 2], [1, 2]]
    path.write_bytes(b'{"env_steps": 1}\n{"env_st')
    assert ([*growing], growing.damaged) == ([{"env_steps": 1}], 0)
    assert ([*whole], whole.damaged) == ([{"env_steps": 1}], 1)
