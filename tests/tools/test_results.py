"""Records of learning results: appended rows are read back, damage is reported, and seeds are summarized."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from starling.errors import UserError
from starling.tools.results.describe import env_of, markdown
from starling.tools.results.records import DEEP_SEA, FILE, Result, append, latest, read, select, summarize, thin

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
ONE = Result(
    preset="ppo-cartpole",
    overrides=(),
    seed=0,
    env_steps=50_000,
    minutes=1.5,
    score=480.0,
    protocol="mean return of the last 100 training episodes",
    versions={"python": "3.11.9"},
    machine={"cpu": "a CPU", "cores": 2},
    commit="0123456789",
    date="2026-11-18",
    curve=((100, 20.0), (50_000, 480.0)),
    note="«quiet»",
)


def test_appended_results_are_read_back(tmp_path):
    file = tmp_path / "results.jsonl"
    assert read(file) == []
    bare = Result("dqn-pong", ("seed_x=1", "stop.minutes=1"), 3, 10, None, -20.5, "other", {}, "unknown")
    append(ONE, file)
    append(bare, file)
    assert read(file) == [ONE, bare]
    assert len(file.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"preset": "ppo-ca', "EOF while parsing"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[1, 2]", "object"),
        (b'{"preset": "ppo-cartpole"}', "overrides"),
        ({"score": "480"}, "score: "),
        ({"score": None}, "score: "),
        ({"seed": 1.5}, "seed: "),
        ({"overrides": "stop.minutes=1"}, "overrides: "),
        ({"curve": [[1, 2, 3]]}, "curve.0"),
        ({"curve": [[1, 2.0]] * 61}, "curve: "),
        ({"scores": 1}, "scores: "),
    ],
)
def test_damaged_line_is_a_clear_error(tmp_path, line, problem):
    file = tmp_path / "results.jsonl"
    append(ONE, file)
    if isinstance(line, dict):
        line = json.dumps(json.loads(file.read_text()) | line).encode()
    file.write_bytes(file.read_bytes() + line + b"\n")
    with pytest.raises(UserError, match="line 2 is damaged") as told:
        read(file)
    assert problem in str(told.value)
    assert str(file) in str(told.value)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("wrong", [{"score": float("nan")}, {"curve": ((1, 2.0),) * 61}, {"minutes": float("inf")}])
def test_invalid_result_is_not_appended(tmp_path, wrong):
    file = tmp_path / "results.jsonl"
    with pytest.raises(UserError, match="the result to append is damaged"):
        append(replace(ONE, **wrong), file)
    assert not file.exists()


def test_torn_line_affects_no_other_line(tmp_path):
    file = tmp_path / "results.jsonl"
    append(ONE, file)
    file.write_bytes(file.read_bytes()[:-20])
    append(replace(ONE, seed=1), file)
    with pytest.raises(UserError, match="line 1 is damaged"):
        read(file)
    file.write_bytes(file.read_bytes().partition(b"\n")[2])
    assert read(file) == [replace(ONE, seed=1)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_file_is_a_one_line_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write to"):
        append(ONE, tmp_path / "results.jsonl")


def test_folder_instead_of_the_file_is_a_one_line_error(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        read(tmp_path)
    with pytest.raises(UserError, match=r"cannot write to .*: Is a directory"):
        append(ONE, tmp_path)


def test_results_are_selected_by_preset_and_overrides():
    long, other = replace(ONE, overrides=("stop.env_steps=9",)), replace(ONE, preset="dqn-cartpole")
    every = [ONE, long, other]
    assert select(every) == every
    assert select(every, "ppo-cartpole") == [ONE, long]
    assert select(every, "ppo-cartpole", []) == [ONE]
    assert select(every, overrides=["stop.env_steps=9"]) == [long]


def test_summary_is_the_median_over_seeds_with_the_last_result_of_each():
    seeds = [
        replace(ONE, seed=0, score=1.0, minutes=None, date="2026-11-20"),
        replace(ONE, seed=0, score=100.0, minutes=1.0, env_steps=10),
        replace(ONE, seed=1, score=300.0, minutes=4.0, env_steps=30),
        replace(ONE, seed=2, score=200.0, minutes=None, env_steps=50, date="2026-11-19"),
    ]
    (summary,) = summarize(seeds)
    assert (summary.scores, summary.seeds, summary.score) == ((100.0, 300.0, 200.0), 3, 200.0)
    assert (summary.env_steps, summary.minutes, summary.date) == (30, 2.5, "2026-11-19")
    assert len(summarize([ONE, replace(ONE, seed=1, protocol="another")])) == 2
    assert summarize([replace(ONE, minutes=None)])[0].minutes is None


def test_preset_without_results_is_described_by_shorter_or_longer_runs():
    short = replace(ONE, overrides=("stop.env_steps=9", "eval.every=null"), score=1.0, date="2026-11-30")
    changed = replace(ONE, overrides=("algo.double=true",), score=2.0, date="2026-12-30")
    later = replace(short, overrides=("stop={env_steps: 7}",), score=3.0, date="2026-12-01")
    assert latest([], "ppo-cartpole") is None
    assert latest([changed], "ppo-cartpole") is None
    assert latest([ONE], "dqn-cartpole") is None
    assert latest([changed, later, short], "ppo-cartpole").score == 3.0
    assert latest([ONE, changed, later, short], "ppo-cartpole").score == ONE.score
    again = replace(ONE, score=5.0, protocol="another")
    assert latest([ONE, again], "ppo-cartpole").score == 5.0, "the one that was appended last"


def test_curves_are_thinned_evenly_and_keep_their_ends():
    assert thin([(1, 2.0)]) == ((1, 2.0),)
    assert len(thin([(i, 0.0) for i in range(60)])) == 60
    steps = [step for step, _ in thin([(i, 0.0) for i in range(1_000)])]
    assert (len(steps), steps[0], steps[-1]) == (60, 0, 999)
    assert {after - before for before, after in pairwise(steps)} <= {16, 17}


def test_bundled_results_are_valid_and_read_without_torch():
    script = """
    import sys
    from starling.tools.results.records import read
    assert read()
    assert not {"torch", "numpy"} & set(sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", script.replace("\n    ", "\n")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = read(FILE)
    assert all(result.curve[-1][0] <= 1.01 * result.env_steps for result in results if result.curve)


def test_results_page_is_up_to_date():
    command = [sys.executable, "-m", "starling.tools.results.describe"]
    generated = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    message = "run: python -m starling.tools.results.describe > docs/benchmarks.md"
    assert generated == PAGE.read_text(encoding="utf-8"), message


def test_table_marks_presets_with_fewer_than_five_seeds():
    five = [replace(ONE, seed=seed, score=float(seed)) for seed in range(5)]
    assert "Fewer than 5 seeds" not in markdown(five)
    row = next(line for line in markdown(five).splitlines() if line.startswith("| CartPole-v1"))
    assert row.startswith("| CartPole-v1 | `ppo-cartpole` | 5 | 50,000 | 1.5 | 2.00 (")
    assert row.endswith(") | (1) | 2026-11-18 |  |")
    assert "**Fewer than 5 seeds**, so that intervals are too narrow: `ppo-cartpole` (4)." in markdown(five[:4])
    assert "| 480.00 | (1) |" in markdown([ONE]), "one seed has no interval"


def test_every_family_and_removed_presets_have_a_table():
    atari, other = replace(ONE, preset="ppo-pong"), replace(ONE, overrides=("env.id=toy/memory", "x='a|b'"))
    gone = replace(ONE, preset="ppo-that-was-removed", minutes=None)
    page = markdown([ONE, atari, other, gone])
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert titles == ["## Atari (ALE)", "## Toy problems", "## Gymnasium", "## Removed presets"]
    assert "`env.id=toy/memory` `x='a\\|b'` |" in page
    assert [env_of(summary) for summary in summarize([atari, other, gone])] == ["ALE/Pong-v5", "toy/memory", None]


def test_deep_sea_has_a_table_of_agents_by_sizes():
    def run(preset, size, episodes, *overrides):
        lengths = (
            f"env.args={{size: {size}, mapping_seed: 42}}",
            f"stop.env_steps={10_000 * size}",
            f"algo.unroll={size}",
        )
        return replace(ONE, preset=preset, overrides=(*overrides, *lengths), score=float(episodes), protocol=DEEP_SEA)

    page = markdown([
        run("dqn-rnd-deepsea", 10, 800), run("dqn-rnd-deepsea", 20, 10_000), run("ngu-deepsea", 20, 1_234),
        run("dqn-rnd-deepsea", 10, 10_000, "curiosity=[]"),
    ])  # fmt: skip
    lines = page[page.index("## Deep sea") :].splitlines()
    assert lines[4:] == [
        "| agent | 10 | 20 | solved |",
        "|---|---|---|---|",
        "| `dqn-rnd-deepsea` | 800 | no | 1 of 2 |",
        "| `ngu-deepsea` |  | 1,234 | 1 of 1 |",
        "| `dqn-rnd-deepsea` `curiosity=[]` | no |  | 0 of 1 |",
    ]
    assert "Toy problems" not in page
