"""`starling metrics`: a table for people, CSV for programs."""

import csv
import io
import json
import re
import subprocess
import sys
import textwrap

import pytest

from starling.cli.metrics import metrics
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder.folder import create

ROWS = [
    {"env_steps": 1000, "return": None, "updates": 0, "time/steps_per_s": 900.5},
    {"env_steps": 2000, "return": 21.5, "updates": 12, "loss/value": 0.125, "time/steps_per_s": 1200.0},
    {"env_steps": 3000, "return": 1021.5, "updates": 24, "eval/return": 7.0, "time/steps_per_s": 1200.0},
]


@pytest.fixture
def run(tmp_path):
    place = create(tmp_path, load("ppo-cartpole", ["run=mine"]))
    place.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return place


def test_csv_has_every_key_once_and_missing_values_are_empty(run, tmp_path, in_process):
    printed = in_process("metrics", run.path, "--csv", tmp_path / "out.csv")
    assert printed == (0, f"wrote {tmp_path / 'out.csv'}: 3 rows\n", "")
    assert (tmp_path / "out.csv").read_text().splitlines() == [
        "env_steps,updates,return,eval/return,loss/value,time/steps_per_s",
        "1000,0,,,,900.5",
        "2000,12,21.5,,0.125,1200.0",
        "3000,24,1021.5,7.0,,1200.0",
    ]


def test_csv_to_stdout_is_only_csv(run, capsys):
    metrics(run.path, csv="-")
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["env_steps"] for row in read] == ["1000", "2000", "3000"]


def test_table_shows_the_last_rows(run, in_process):
    code, printed, _ = in_process("metrics", run.path, "--last", 2)
    assert code == 0
    assert printed.splitlines() == [
        "env_steps  updates   return  eval/return  loss/value  time/steps_per_s",
        "    2,000       12     21.5            -       0.125           1,200.0",
        "    3,000       24  1,021.5            7           -           1,200.0",
    ]


def test_table_shows_epsilon_if_there_is_one(run, capsys):
    with run.metrics_file.open("a") as file:
        file.write(json.dumps({"env_steps": 4000, "explore/epsilon": 0.05, "explore/epsilon_min": 0.01}) + "\n")
    metrics(run.path, last=1)
    assert capsys.readouterr().out.splitlines() == ["env_steps  explore/epsilon", "    4,000             0.05"]


def test_keys_are_explained_in_the_order_of_the_reference(run, in_process, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with run.metrics_file.open("a") as file:
        file.write(json.dumps({"env_steps": 4000, "store/mine/size": 3, "loss/own\x1b[2J": 1.0}) + "\n")
    code, printed, _ = in_process("metrics", run.path, "--keys")
    assert code == 0
    lines = [line for line in printed.splitlines() if not line.startswith(" ")]  # without what was wrapped
    assert [line.split()[0] for line in lines] == [
        "env_steps",
        "updates",
        "return",
        "eval/return",
        "loss/value",
        "store/mine/size",
        "time/steps_per_s",
        "loss/own\\x1b[2J",
    ]
    assert re.fullmatch(r"eval/return +reward +Mean return of eval.episodes episodes, like return", lines[3])
    assert lines[-1].endswith("not in the reference: of your own algorithm?")


def test_keys_of_a_run_without_rows_are_none(run, in_process):
    run.metrics_file.write_text("")
    assert in_process("metrics", run.path, "--keys") == (0, "no rows yet\n", "")


def test_text_values_are_in_the_csv_but_not_in_the_table(run, capsys):
    words = "learner busy 98%, all the time: more actors will not help"
    with run.metrics_file.open("a") as file:
        file.write(json.dumps({"env_steps": 4000, "time/bottleneck": words}) + "\n")
    metrics(run.path, csv="-")
    assert list(csv.DictReader(io.StringIO(capsys.readouterr().out)))[-1]["time/bottleneck"] == words
    metrics(run.path)
    assert "bottleneck" not in capsys.readouterr().out


def test_row_being_written_is_not_shown(run, capsys):
    with run.metrics_file.open("a") as file:
        file.write('{"env_steps": 40')
    metrics(run.path, csv="-")
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_invalid_input_is_a_one_line_error_and_writes_nothing(run, tmp_path):
    with pytest.raises(UserError, match="no such run"):
        metrics(tmp_path / "other")
    with pytest.raises(UserError, match=r"cannot write .*No such file or directory; choose another file with --csv"):
        metrics(run.path, csv=str(tmp_path / "none" / "out.csv"))
    run.metrics_file.unlink()
    with pytest.raises(UserError, match="nothing has been written yet"):
        metrics(run.path)


def test_damaged_rows_are_counted_and_the_others_shown(run, capsys):
    content = run.metrics_file.read_bytes()
    run.metrics_file.write_bytes(b"nonsense\n" + content + b'{"note": "\xff"}\n[1]\n')
    metrics(run.path, csv="-")
    printed = capsys.readouterr()
    assert [row["env_steps"] for row in csv.DictReader(io.StringIO(printed.out))] == ["1000", "2000", "3000"]
    assert printed.err == f"warning: {run.metrics_file}: 3 damaged rows are left out\n"


def test_run_without_rows_is_reported(run, capsys):
    run.metrics_file.write_text("")
    metrics(run.path)
    assert capsys.readouterr().out == "no rows yet\n"


def test_metrics_command_does_not_import_torch(run):
    script = """
        import sys
        from pathlib import Path
        from starling.cli.metrics import metrics
        metrics(Path(sys.argv[1]))
        print("torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), run.path], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.endswith("False\n")
