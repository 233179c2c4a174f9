"""What a report reads of runs: columns, sessions, groups, series, bands, events."""

import json
import os
import shutil

import numpy as np
import pytest
from support.report_runs import make_run, rows

from starling.errors import UserError
from starling.experiment.bottleneck import limiting_part
from starling.experiment.run_folder.lock import is_locked, locked
from starling.experiment.run_folder.metric_keys import METRICS
from starling.tools.report import metric_columns, panels
from starling.tools.report.curves import curves_of, smoothed
from starling.tools.report.groups import group_runs, setting_differences
from starling.tools.report.metric_columns import STEPS_PER_S, UPDATES_PER_S, Column, read_table
from starling.tools.report.panels import panels_of
from starling.tools.report.runs import read_run, read_runs
from starling.tools.report.scale import duration, number, short, ticks, time_ticks
from starling.tools.statistics import interquartile_curve, interquartile_mean


def test_a_long_column_is_averaged_in_pairs_and_keeps_its_exact_ends():
    column, n = Column(), 3 * metric_columns.MOST_POINTS + 7
    values = np.random.default_rng(0).normal(size=n)
    for i, value in enumerate(values):
        column.add(i, 2 * i, value)
    steps, seconds, points = column.points()
    assert len(points) <= metric_columns.MOST_POINTS
    assert (column.count, column.last) == (n, values[-1])
    assert (column.low, column.high) == (values.min(), values.max())
    np.testing.assert_allclose(seconds, 2 * steps)
    stride = int(steps[1] - steps[0])
    whole = n // stride * stride
    np.testing.assert_allclose(points[: whole // stride], values[:whole].reshape(-1, stride).mean(1))


def test_time_goes_on_over_sessions_and_speeds_are_those_of_the_last_rows():
    first = rows(3)
    second = [
        {"env_steps": 4_000, "updates": 40, "time/seconds": 4.0, "time/steps_per_s": 250.0, "time/updates_per_s": 2.5},
        {"env_steps": 5_000, "updates": 60, "time/seconds": 8.0, "time/steps_per_s": 250.0, "time/updates_per_s": 2.5},
    ]
    table = read_table([*first, *second])
    assert (table.sessions, table.seconds, table.env_steps) == (2, 14.0, 5_000)
    np.testing.assert_allclose(table.columns["updates"].points()[1], [2, 4, 6, 10, 14])
    np.testing.assert_allclose(table.columns[STEPS_PER_S].points()[2], [500, 500, 500, 250, 250])
    np.testing.assert_allclose(table.columns[UPDATES_PER_S].points()[2], [5, 5, 5, 2.5, 3.75])


def test_rows_without_times_have_steps_only():
    table = read_table(
        [{"env_steps": 1, "return": 2.0}, {"env_steps": 2, "return": None}, {"env_steps": 3, "return": 4.0}]
    )
    steps, seconds, values = table.columns["return"].points()
    assert list(steps) == [1, 3]
    assert np.isnan(seconds).all()
    assert list(values) == [2, 4]


def test_frames_per_step_come_from_the_rows():
    assert read_table(rows(3, skip=4)).frames_per_step == 4
    assert read_table(rows(3)).frames_per_step == 1


def test_curve_of_means_is_the_interquartile_mean_at_every_point():
    curves = np.random.default_rng(0).normal(size=(9, 5)) + np.arange(5)
    middle, low, high = interquartile_curve(curves)
    np.testing.assert_allclose(middle, [interquartile_mean(curves[:, i]) for i in range(5)])
    assert (low < middle).all()
    assert (middle < high).all()
    for one, other in zip(interquartile_curve(curves), interquartile_curve(curves), strict=True):
        np.testing.assert_array_equal(one, other)
    alone = interquartile_curve(curves[:1])
    np.testing.assert_array_equal(alone[0], alone[1])


def test_smoothing_is_an_average_without_bias_towards_zero():
    values = np.array([4.0, 0.0, 2.0])
    np.testing.assert_allclose(smoothed(values, 0.5), [4.0, (0.5 * 4) / 1.5, (2 + 0.5 * 0 + 0.25 * 4) / 1.75])
    np.testing.assert_array_equal(smoothed(values, 0.0), values)


@pytest.fixture
def seeds(tmp_path):
    """Three seeds of PPO, one with another learning setting, and one of another env."""
    folders = [
        make_run(tmp_path, f"s{seed}", overrides=[f"seed={seed}"], metrics=rows(start=seed)) for seed in range(3)
    ]
    folders.append(make_run(tmp_path, "other", overrides=["seed=7", "algo.gae_lambda=0.9", "log.every=10"]))
    folders.append(make_run(tmp_path, "acro", overrides=["env.id=Acrobot-v1"]))
    return folders


def test_runs_are_grouped_by_env_and_seeds_form_a_series(seeds):
    found, missing = read_runs(seeds)
    groups = group_runs(found)
    assert missing == []
    assert [group.title for group in groups] == ["CartPole-v1", "Acrobot-v1"]
    assert [(s.label, [run.name for run in s.runs]) for s in groups[0].series] == [
        ("ppo algo.gae_lambda=0.8", ["s0", "s1", "s2"]),
        ("ppo algo.gae_lambda=0.9", ["other"]),
    ]
    differ = setting_differences(groups[0].runs)
    assert differ["algo.gae_lambda"] == [0.8, 0.8, 0.8, 0.9]
    assert set(differ) == {"seed", "algo.gae_lambda", "log.every"}


def test_scores_of_another_protocol_are_another_group(tmp_path):
    pong = "env.id=ALE/Pong-v5"
    folders = [
        make_run(tmp_path, "plain", "dqn-atari", [pong]),
        make_run(tmp_path, "gray", "dqn-atari", [pong, "env.atari.stack=1", "env.atari.episodic_life=false"]),
        make_run(tmp_path, "sticky", "dqn-atari", [pong, "env.atari.sticky=0.25"]),
    ]
    groups = group_runs(read_runs(folders)[0])
    assert [(group.title, len(group.runs)) for group in groups] == [
        ("ALE/Pong-v5 (atari.sticky=0.0)", 2),
        ("ALE/Pong-v5 (atari.sticky=0.25)", 1),
    ]


def test_band_covers_seeds_as_far_as_all_of_them_go_and_counts_a_seed_once(tmp_path):
    lengths = {"a": (0, 20), "b": (1, 10), "c": (2, 20), "again": (0, 20)}
    folders = [
        make_run(tmp_path, name, overrides=[f"seed={seed}"], metrics=rows(count, start=100 * (name == "again")))
        for name, (seed, count) in lengths.items()
    ]
    (group,) = group_runs(read_runs(folders)[0])
    (curve,) = curves_of(group, "return", "steps")
    assert curve.seeds == 3
    assert len(curve.runs) == 4
    assert (curve.middle.x[0], curve.middle.x[-1]) == (1_000, 10_000)
    np.testing.assert_allclose(curve.middle.y, curve.middle.x / 1_000)  # without the second run of seed 0
    (over_time,) = curves_of(group, "return", "time")
    assert (over_time.middle.x[0], over_time.middle.x[-1]) == (2, 20)


def test_every_key_is_in_one_panel_and_keys_named_here_are_in_the_reference(tmp_path):
    known = {metric.key for metric in METRICS}
    named = {*panels.TITLES, *panels.SCORE, *panels.STALENESS, *panels.MAIN_LOSSES, *panels.CURIOSITY}
    assert named | {*panels.ARMS, *panels.SPEED_KEYS} <= known
    more = {"loss/own": 1.0, "strange": 2.0, "eval/arm/0/return": 1.0, "store/replay/size": 3, "eval/success": 0.5}
    path = make_run(tmp_path, "a", metrics=rows(**more))
    (group,) = group_runs(read_runs([path])[0])
    drawn = [chart.key for panel in panels_of(group) for chart in panel.charts]
    numbers = {key for key, value in rows(**more)[0].items() if not isinstance(value, str)}
    assert sorted(key for key in set(drawn)) == sorted(
        (numbers | {STEPS_PER_S, UPDATES_PER_S}) - {"env_steps", "eval/arm/0/return"}
    )
    assert sorted(drawn) == sorted([*set(drawn), STEPS_PER_S])  # once more, in frames
    assert {chart.key for panel in panels_of(group)[:1] for chart in panel.charts} == {
        "return", "episode_length", "eval/success",
    }  # fmt: skip


def test_events_and_state_come_from_the_log(tmp_path):
    log = ["run: here", "actor-0 died (signal 9): again in 1 s", "actor-0 died (signal 9): again in 1 s"]
    log += ["warning: too fast", "finished: stop.env_steps=20 reached, 20 env steps\nTraceback line"]
    run = read_run(make_run(tmp_path, "a", log=log))
    assert [(event.kind, event.count) for event in run.events] == [
        ("start", 1), ("failure", 2), ("warning", 1), ("end", 1),
    ]  # fmt: skip
    assert run.events[-1].text.endswith("\nTraceback line")
    assert run.crashes == 2
    assert run.status.startswith("finished: stop.env_steps=20")


def test_a_run_that_goes_on_is_in_progress_and_its_torn_last_row_is_ignored(tmp_path):
    path = make_run(tmp_path, "a", log=["run: here", "finished: stop", "resuming from step-20"])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 99')
    assert not is_locked(path)
    assert "no end in its log" in read_run(path).status
    with locked(path, print):
        assert is_locked(path)
        run = read_run(path)
    assert (run.status, run.is_running, run.table.rows, run.problems) == ("in progress", True, 20, ())


def test_damaged_rows_and_an_older_configuration_are_told_and_the_rest_is_shown(tmp_path):
    path = make_run(tmp_path, "a")
    with (path / "metrics.jsonl").open("a") as file:
        file.write("rubbish\n")
    config = (path / "config.yaml").read_text().replace("\nseed: 0\n", "\n")
    (path / "config.yaml").write_text(config)
    run = read_run(path)
    assert (run.env, run.algorithm, run.seed, run.table.rows) == ("CartPole-v1", "ppo", None, 20)
    assert len(run.problems) == 2
    assert "lacks seed" in run.problems[0]
    assert "1 damaged row is left out" in run.problems[1]


def test_what_is_no_run_is_named_in_one_line_each(tmp_path):
    empty, bare, torn, nothing = (tmp_path / name for name in ("empty", "bare", "torn", "nothing"))
    empty.mkdir()
    sound = make_run(tmp_path, "sound")
    for copy in (bare, torn, nothing):
        shutil.copytree(sound, copy)
    (bare / "metrics.jsonl").unlink()
    (torn / "config.yaml").write_text("env: [")
    (nothing / "metrics.jsonl").write_text("")
    (tmp_path / "file").write_text("")
    paths = [empty, bare, sound, torn, nothing, tmp_path / "file", sound]
    found, missing = read_runs(paths)
    assert [run.name for run in found] == ["sound"]
    assert [line.partition(str(tmp_path))[2].partition(" ")[2][:24] for line in missing] == [
        "is not a run: it has no ",
        "has no metrics.jsonl: no",
        "config.yaml cannot be re",
        "has no rows of metrics y",
        "",
    ]


def test_secrets_of_a_damaged_configuration_stay_hidden(tmp_path):
    path = make_run(tmp_path, "a", overrides=["env.args.api_key=sesame"])
    assert read_run(path).setting("env.args.api_key") == "[hidden]"
    (path / "config.yaml").write_text((path / "config.yaml").read_text().replace("\nseed: 0\n", "\n"))
    assert read_run(path).setting("env.args.api_key") == "[hidden]"


def test_values_of_environment_variables_are_never_in_a_report(tmp_path, monkeypatch):
    """A stranger's configuration may name any variable, and an error message would quote its value."""
    monkeypatch.setenv("PRECIOUS", "sesame")
    path = make_run(tmp_path, "a")
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(config.replace("id: CartPole-v1", "id: '${env:PRECIOUS}'"))
    run = read_run(path)
    assert (run.env, run.problems) == ("${env:PRECIOUS}", ())
    wrappers = 'wrappers: {TimeLimit: {note: "${env:PRECIOUS}"}}'
    (path / "config.yaml").write_text(config.replace("wrappers: []", wrappers))
    run = read_run(path)
    assert run.setting("env.wrappers") == [{"name": "TimeLimit", "args": {"note": "${env:PRECIOUS}"}}]
    for reference in ("'${env:PRECIOUS}'", '"\\x24{env:PRECIOUS}"'):
        (path / "config.yaml").write_text(config.replace("\nseed: 0\n", f"\nseed: {reference}\n"))
        run = read_run(path)
        assert run.seed == "${env:PRECIOUS}"
        assert "sesame" not in run.problems[0]
        assert "starling config show" in run.problems[0]


def test_links_are_not_followed(tmp_path):
    path = make_run(tmp_path, "a")
    (tmp_path / "secret.txt").write_text("secret")
    (path / "videos").mkdir()
    os.symlink(tmp_path / "secret.txt", path / "videos" / "a.mp4")
    with pytest.raises(UserError, match="a symbolic link"):
        read_run(path)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("one process: 80% learning, 20% acting; a smaller network", "learner"),
        ("one process: 20% learning, 80% acting; more", "actors"),
        ("learner busy 98%: more actors will not help", "learner"),
        ("learner busy 98%, actors busy 99%: balanced; only more cores would help both", "balance"),
        ("hub busy 90%, learner waits 50%: smaller batches", "hub"),
        ("inference busy 95% with batches of 3 envs: more envs", "inference"),
        ("actors wait 50% for actions, inference busy 40%: more", "inference"),
        ("actors busy 97%, learner waits 60%: more actors", "actors"),
        ("limited by algo.max_lag=0: learner waits 50%", "balance"),
        ("no clear limit: learner busy 40%, actors busy 30%", "none"),
        ("<script>", "none"),
    ],
)
def test_the_part_that_limits_a_run_is_known_from_its_line(line, part):
    assert limiting_part(line) == part


def test_ticks_are_round_and_inside():
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(-21, 21) == [-20, -10, 0, 10, 20]
    assert ticks(3, 3) == [3]
    assert time_ticks(100) == [0, 30, 60, 90]
    assert time_ticks(3 * 86_400) == [0, 86_400, 2 * 86_400, 3 * 86_400]
    assert len(ticks(0, 2.0**200)) <= 7


def test_numbers_are_short():
    assert [short(v) for v in (0, 0.25, 1500, 2e6, -2e5, 1e-5, 999_999)] == [
        "0",
        "0.25",
        "1.5k",
        "2M",
        "-200k",
        "1e-05",
        "1M",
    ]
    assert [number(v) for v in (None, 3.0, 1234.56, 0.123456)] == ["-", "3", "1,234.6", "0.1235"]
    assert [duration(v) for v in (0, 4.25, 90, 3700, 200_000)] == ["0 s", "4.2 s", "1 min 30 s", "1 h 2 min", "2 d 8 h"]


def test_reading_rows_takes_no_more_memory_with_more_of_them():
    """A column keeps a fixed number of points."""
    table = read_table({"env_steps": i, "return": 1.0, "time/seconds": 1.0 * i} for i in range(20_000))
    assert table.rows == 20_000
    assert len(table.columns["return"].points()[0]) <= metric_columns.MOST_POINTS
    assert json.dumps(table.env_steps) == "19999"
