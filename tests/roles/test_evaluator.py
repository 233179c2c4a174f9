"""What an evaluation reports: mean and standard deviation of raw returns, over the episodes asked for."""

import numpy as np
import pytest

from starling.blueprint import build_model, draw
from starling.building import build_evaluator
from starling.config.load import load
from starling.roles import evaluator as evaluator_module


def test_an_evaluation_reports_mean_and_standard_deviation_of_the_returns_it_played():
    plan = draw(load("ppo-cartpole", ["net.torso.hidden=[8]"]))
    evaluator = build_evaluator(plan, build_model(plan), plan.config.eval.model_copy(update={"episodes": 12}), seed=3)
    try:
        played = [game for ended in evaluator.play() for game in ended]
        *under_way, row = evaluator.evaluate()
    finally:
        evaluator.env.close()
    returns = [game.total for game in played]
    assert len(returns) == 12
    assert set(under_way) == {None}
    assert np.std(returns) > 1.5  # far from its own square
    assert row["eval/return"] == pytest.approx(np.mean(returns))
    assert row["eval/return_std"] == pytest.approx(np.std(returns))
    assert row["eval/length"] == pytest.approx(np.mean([game.length for game in played]))


def test_a_game_that_never_ends_is_cut_and_counts_as_it_stands(monkeypatch, caplog):
    monkeypatch.setattr(evaluator_module, "LONGEST", 50)
    plan = draw(load("ppo-cartpole", ["env.id=CliffWalking-v1", "net.torso.hidden=[8]"]))
    evaluator = build_evaluator(plan, build_model(plan), plan.config.eval.model_copy(update={"episodes": 3}), seed=3)
    try:
        played = [game for ended in evaluator.play() for game in ended]
    finally:
        evaluator.env.close()
    assert [game.length for game in played] == [50] * 3
    assert all(game.total <= -50 for game in played)  # every step costs 1, a fall 100
    assert len(caplog.messages) == 1
    assert "'CliffWalking-v1' had not ended after 50 steps" in caplog.messages[0]
