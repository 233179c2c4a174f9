"""The scorecard: human-normalized scores, and comparisons only where the protocols agree."""

import pytest
from support.report_runs import make_run, rows

from starling.errors import UserError
from starling.tools.report.groups import group_runs
from starling.tools.report.runs import read_runs
from starling.tools.scorecard.published import game_of, published
from starling.tools.scorecard.scorecard import cards_of, column_called, protocol_of

AS_DQN = ["env.id=ALE/Breakout-v5", "env.atari.max_frames=18000", "algo.eval_epsilon=0.05"]


def score_rows(steps=50_000_000, **more):
    """Two rows, the last one after 200M frames, with an evaluation of 250 after one of 300."""
    first, last = rows(2, skip=4, **more)
    return [first | {"eval/return": 300.0}, last | {"env_steps": steps, "return": 200.0, "eval/return": 250.0}]


def card(tmp_path, overrides, preset="dqn-atari", metrics=None, seeds=1):
    folders = [
        make_run(
            tmp_path, f"r{seed}", preset, [*overrides, f"seed={seed}"], score_rows() if metrics is None else metrics
        )
        for seed in range(seeds)
    ]
    (group,) = group_runs(read_runs(folders)[0])
    (found,) = cards_of(group)
    return found


def beside(found, name):
    return next(comparison for comparison in found.comparisons if comparison.column.name == name)


def test_published_scores_have_every_game_of_the_reference():
    data = published()
    games = {"Pong", "Breakout", "Asterix", "Zaxxon", "WizardOfWor", "Seaquest"}
    assert set(data.reference.random) == set(data.reference.human) == games
    whole = [column.name for column in data.columns if column.family == "ALE" and set(column.scores) == games]
    assert whole == ["DQN", "DDQN", "PER (prop)", "dueling", "Ape-X", "IMPALA deep", "R2D2", "PPO 40M", "Agent57"]
    assert data.reference.normalized("Breakout", 30.5) == 1.0
    assert data.reference.normalized("Breakout", 1.7) == 0.0
    assert data.reference.normalized("Freeway", 1.0) is None


def test_score_by_the_same_protocol_is_compared(tmp_path):
    found = card(tmp_path, AS_DQN)
    dqn = beside(found, "DQN")
    assert (dqn.differences, dqn.unknown) == ((), ())
    assert (dqn.score.kind, dqn.score.value) == ("final", 250.0)
    assert dqn.score.normalized == pytest.approx((250 - 1.7) / (30.5 - 1.7))
    assert dqn.ratio == pytest.approx((250 - 1.7) / (401.2 - 1.7))
    assert (found.steps_per_s, found.frames_per_s) == (500.0, 2_000.0)
    assert {score.kind: score.value for score in found.scores} == {"training": 200.0, "final": 250.0, "best": 300.0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("env.atari.sticky=0.25", "sticky actions: 0.25 here, 0 there"),
        ("env.atari.noop_max=0", "no-op starts: 0 here, 30 there"),
        ("env.atari.episodic_life=false", "end of training episodes at a lost life: no here, yes there"),
        ("env.atari.max_frames=108000", "frames per episode: 108,000 here, 18,000 there"),
        ("env.atari.frame_skip=2", "frame skip: 2 here, 4 there"),
        ("algo.eval_epsilon=0.001", "epsilon of the evaluation: 0.001 here, 0.05 there"),
        ("env.wrappers=[{name: ClipReward, args: {min_reward: -1}}]", "env.wrappers here, none there"),
    ],
)
def test_one_point_that_differs_forbids_the_comparison_and_is_named(tmp_path, change, told):
    dqn = beside(card(tmp_path, [*AS_DQN, change]), "DQN")
    assert dqn.differences == (told,)
    assert not dqn.is_comparable
    assert dqn.ratio is None
    assert dqn.verdict == f"not compared: {told}"


def test_length_of_training_and_kind_of_score_are_points_of_the_protocol(tmp_path):
    short = beside(card(tmp_path / "a", AS_DQN, metrics=score_rows(10_000_000)), "DQN")
    assert short.differences == ("frames of training: 40M here, 200M there",)
    no_evaluation = [{k: v for k, v in row.items() if k != "eval/return"} for row in score_rows()]
    plain = beside(card(tmp_path / "b", AS_DQN, metrics=no_evaluation), "DQN")
    assert plain.differences == (
        "evaluation: last 100 training episodes here, last evaluation or best evaluation of training there",
    )
    assert plain.score is None


def test_training_score_belongs_beside_one_of_training(tmp_path):
    found = card(tmp_path, ["env.id=ALE/Breakout-v5"], "ppo-atari", score_rows(10_000_000))
    ppo = beside(found, "PPO 40M")
    assert (ppo.score.kind, ppo.score.value) == ("training", 200.0)
    assert ppo.is_comparable
    assert ppo.unknown == (
        "no-op starts", "end of training episodes at a lost life", "epsilon of the evaluation",
    )  # fmt: skip
    assert "not recorded" in ppo.verdict


def test_best_evaluation_belongs_beside_one_of_the_best(tmp_path):
    found = card(tmp_path, ["env.id=ALE/Breakout-v5"])
    assert beside(found, "Ape-X").score.kind == "best"
    assert beside(found, "Ape-X").score.value == 300.0


def test_several_seeds_have_an_interval(tmp_path):
    found = card(tmp_path, AS_DQN, seeds=3)
    assert [score.seeds for score in found.scores] == [3, 3, 3]
    assert found.scores[0].interval == (200.0, 200.0)


def test_minatar_needs_all_six_actions(tmp_path):
    steps = [row | {"env_steps": 5_000_000} for row in rows(1)]
    whole = card(tmp_path / "a", ["env.id=MinAtar/SpaceInvaders-v0"], "ppo-minatar", steps)
    column = beside(whole, "MinAtar (best)")
    assert column.is_comparable
    assert column.normalized is None
    minimal = card(tmp_path / "b", ["env.id=MinAtar/SpaceInvaders-v1"], "ppo-minatar", steps)
    assert beside(minimal, "MinAtar (best)").differences == ("actions: those that the game uses here, all 6 there",)


def test_an_env_without_published_scores_has_no_card(tmp_path):
    (group,) = group_runs(read_runs([make_run(tmp_path, "a")])[0])
    assert cards_of(group) == []
    assert game_of("CartPole-v1") is None


def test_an_unknown_column_is_refused():
    with pytest.raises(UserError, match="no published column 'Apex'; did you mean 'Ape-X'"):
        column_called("Apex")
    assert column_called("dqn").name == "DQN"


def test_settings_of_a_strange_type_are_no_protocol(tmp_path):
    """A configuration that is not valid may have any value."""
    path = make_run(tmp_path, "a", "dqn-atari", AS_DQN, score_rows())
    text = (
        (path / "config.yaml").read_text().replace("noop_max: 30", "noop_max: [x]").replace("sticky: 0.0", "sticky: {}")
    )
    (path / "config.yaml").write_text(text)
    runs, missing = read_runs([path])
    assert missing == []
    assert (protocol_of(runs[0]).noop_max, protocol_of(runs[0]).sticky) == (None, None)
