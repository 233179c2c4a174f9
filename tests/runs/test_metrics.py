"""Scores and rows."""

from starling.runs.metrics import MetricsFile, Scoreboard, read_rows
from starling.types import Episode


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


def test_a_resumed_file_drops_rows_its_checkpoint_had_not_seen(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    for step in range(4):
        metrics.write({"env_steps": step})
    metrics.close()
    again = MetricsFile(path, keep_rows=2)
    again.write({"env_steps": 20})
    again.close()
    assert [row["env_steps"] for row in read_rows(path)] == [0, 1, 20]
    assert again.rows == 3
