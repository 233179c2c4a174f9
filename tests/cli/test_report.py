"""`starling report`, `starling scorecard`, and the curve that a finished run leaves."""

import csv
import json
import shutil
import subprocess
import sys

import pytest
from support.report_runs import make_run, rows

from starling.experiment.run_folder.lock import locked
from starling.tools.report import curve
from starling.tools.report.curve import write_curve

SHORT = ["stop.env_steps=2000", "stop.return=null", "log.every=200", "threads=1"]
DQN = ["algo.learning_starts=200", "algo.updates_per_step=0.05", "net.torso.hidden=[8]"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, train_once):
    """Three seeds each of PPO and DQN on CartPole, 2,000 steps each."""
    runs = {
        f"{algo}-{seed}": [f"{algo}-cartpole", *SHORT, *more, f"seed={seed}"]
        for algo, more in (("ppo", []), ("dqn", DQN))
        for seed in range(3)
    }
    run = train_once(tmp_path_factory.mktemp("trained"), runs)
    return [run(name) for name in runs]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs", "mine")


def test_report_of_real_runs_has_page_images_and_table(trained, tmp_path, in_process):
    out, png, table = tmp_path / "page.html", tmp_path / "plots", tmp_path / "all.csv"
    files = ["--out", out, "--png", png, "--csv", table]
    code, printed, complaint = in_process("report", *trained, *files, "--smooth", 0.6)
    assert (code, complaint) == (0, "")
    count = len(list(png.iterdir()))
    with table.open() as stream:
        read = list(csv.DictReader(stream))
    assert printed.splitlines() == [
        f"wrote {out}: 6 runs, 1 environment",
        f"wrote {count} images to {png}",
        f"wrote {table}: {len(read)} rows",
    ]
    html = out.read_text()
    assert 'value="0.6"' in html
    for text in (
        "ppo, IQM of 3 seeds",
        "dqn, IQM of 3 seeds",
        "Q values",
        "Epsilon",
        "What limited the speed",
        "finished: ",
    ):
        assert text in html
    assert (png / "CartPole-v1-return.png").read_bytes().startswith(b"\x89PNG")
    assert (png / "CartPole-v1-return-over-time.png").exists()
    assert {(row["series"], row["run"], row["seed"]) for row in read} == {
        (path.name[:3], path.name, path.name[-1]) for path in trained
    }
    assert [row["env_steps"] for row in read if row["run"] == "dqn-2"][-1] == "2000"


def test_a_finished_run_leaves_its_curve_and_says_so(trained):
    for path in trained:
        assert (path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_report_does_not_import_torch(run, tmp_path):
    code = (
        "import sys; from starling.cli import main; sys.argv = sys.argv[1:]\n"
        "try: main.main()\n"
        "except SystemExit as ended: assert not ended.code, ended\n"
        "found = {'torch', 'gymnasium', 'matplotlib'} & set(sys.modules); assert not found, found"
    )
    for command in (["report", run, "--out", tmp_path / "a.html", "--csv", tmp_path / "a.csv"],):
        arguments = [sys.executable, "-c", code, "starling", *map(str, command)]
        ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


def test_report_of_a_run_in_progress(run, tmp_path, in_process):
    with locked(run, print):
        assert in_process("report", run, "--out", tmp_path / "a.html", "--smooth", 0.6)[0] == 0
    assert "1 in progress" in (tmp_path / "a.html").read_text()
    assert 'value="0.6"' in (tmp_path / "a.html").read_text()


def test_what_is_no_run_ends_with_one_line_each_and_writes_nothing(tmp_path, in_process):
    (tmp_path / "empty").mkdir()
    code, printed, complaint = in_process("report", tmp_path / "empty", tmp_path / "none", "--out", tmp_path / "a.html")
    assert (code, printed) == (2, "")
    assert complaint.splitlines() == [
        f"error: {tmp_path / 'empty'} is not a run: it has no config.yaml",
        f"error: no such run: {tmp_path / 'none'}",
    ]
    assert not (tmp_path / "a.html").exists()


def test_a_report_without_some_of_the_runs_names_them_on_the_page_and_ends_with_2(run, tmp_path, in_process):
    (tmp_path / "empty").mkdir()
    code, printed, complaint = in_process("report", tmp_path / "empty", run, "--out", tmp_path / "a.html")
    assert (code, printed) == (2, f"wrote {tmp_path / 'a.html'}: 1 run, 1 environment\n")
    assert complaint == f"error: {tmp_path / 'empty'} is not a run: it has no config.yaml\n"
    assert "empty is not a run" in (tmp_path / "a.html").read_text()


def test_damage_is_a_warning_and_on_the_page(run, tmp_path, in_process):
    with (run / "metrics.jsonl").open("a") as file:
        file.write("rubbish\n")
    code, _, complaint = in_process("report", run, "--out", tmp_path / "a.html")
    assert code == 0
    assert complaint == f"warning: mine: {run / 'metrics.jsonl'}: 1 damaged row is left out\n"
    assert "1 damaged row" in (tmp_path / "a.html").read_text()


def test_files_that_cannot_be_written_are_one_line(run, tmp_path, in_process):
    for option, text in (("--out", "choose another file with --out"), ("--csv", "choose another file with --csv")):
        code, _, complaint = in_process("report", run, "--out", tmp_path / "a.html", option, tmp_path / "no" / "file")
        assert code == 2
        assert complaint.endswith(f"No such file or directory; {text}\n")
    (tmp_path / "file").write_text("")
    code, _, complaint = in_process("report", run, "--out", tmp_path / "a.html", "--png", tmp_path / "file")
    assert code == 2
    assert "choose another folder with --png" in complaint


def test_images_without_matplotlib_name_the_extra(run, tmp_path, in_process, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, complaint = in_process("report", run, "--out", tmp_path / "a.html", "--png", tmp_path / "png")
    assert code == 2
    assert complaint == "error: images need matplotlib: pip install 'starling-rl[report]', or leave out --png\n"
    assert not (tmp_path / "a.html").exists()


def test_texts_that_a_spreadsheet_takes_for_formulas_are_quoted(tmp_path, in_process):
    more = {"=cmd": 1.0, "time/bottleneck": "=1+1"}
    path = make_run(tmp_path / "runs", "mine", metrics=rows(2, **more))
    evil = path.rename(path.parent / "=evil")
    assert in_process("report", evil, "--out", tmp_path / "a.html", "--csv", tmp_path / "a.csv")[0] == 0
    with (tmp_path / "a.csv").open() as stream:
        first = next(csv.DictReader(stream))
    assert (first["run"], first["'=cmd"], first["time/bottleneck"]) == ("'=evil", "1.0", "'=1+1")


def test_curve_is_left_out_where_it_cannot_be_drawn(run, monkeypatch):
    assert write_curve(run, "$\\frac{$ mine") == run / "curve.png"
    (run / "curve.png").unlink()
    short = (run / "metrics.jsonl").read_text().splitlines()[0]
    (run / "metrics.jsonl").write_text(short)
    assert write_curve(run, "mine") is None
    shutil.rmtree(run)
    assert write_curve(run, "mine") is None
    monkeypatch.setattr(curve, "find_spec", lambda name: None)
    assert write_curve(run, "mine") is None


def test_scorecard_names_the_points_that_differ(tmp_path, in_process):
    path = make_run(tmp_path, "pong", "dqn-atari", ["env.id=ALE/Pong-v5"], rows(skip=4, start=-20))
    code, printed, complaint = in_process("scorecard", path, "--against", "dqn", "--against", "PPO 40M", "--json")
    assert (code, complaint) == (0, "")
    *lines, data = printed.splitlines()
    assert lines == [
        "ALE/Pong-v5: dqn, 500 steps/s, 2,000 frames/s",
        "  last 100 training episodes: 0, 1 seed, human-normalized 58.6%",
        "  DQN                  18.9 (human-normalized 112.2%): not compared: frames of training: 80k here, 200M there;"
        " frames per episode: 108,000 here, 18,000 there; evaluation: last 100 training episodes here, last evaluation"
        " or best evaluation of training there",
        "  PPO 40M              20.7 (human-normalized 117.3%): not compared: frames of training: 80k here, 40M there",
    ]
    (card,) = json.loads(data)
    assert [column["comparable"] for column in card["columns"]] == [False, False]


def test_scorecard_without_published_scores_is_one_line(run, in_process):
    code, printed, complaint = in_process("scorecard", run)
    assert (code, printed) == (2, "")
    (line,) = complaint.splitlines()
    assert line.startswith("error: no published score for CartPole-v1 (ALE: Asterix, Breakout, Pong,")
    code, _, complaint = in_process("scorecard", run, "--against", "nobody")
    assert code == 2
    assert complaint.startswith("error: no published column 'nobody'; there are DQN, DDQN")
