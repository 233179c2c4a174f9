"""What an evaluation reports: mean and standard deviation of raw returns, over the episodes asked for."""

import numpy as np
import pytest

from starling.blueprint import build_model, draw
from starling.building import build_evaluator
from starling.config.load import load


def test_an_evaluation_reports_mean_and_standard_deviation_of_the_returns_it_played():
    plan = draw(load("ppo-cartpole", ["net.torso.hidden=[8]"]))
    evaluator = build_evaluator(plan, build_model(plan), plan.config.eval.model_copy(update={"episodes": 12}), seed=3)
    try:
        played, row = evaluator.play(), evaluator.evaluate()
    finally:
        evaluator.env.close()
    returns = [game.total for game in played]
    assert len(returns) == 12
    assert np.std(returns) > 1.5  # far from its own square
    assert row["eval/return"] == pytest.approx(np.mean(returns))
    assert row["eval/return_std"] == pytest.approx(np.std(returns))
    assert row["eval/length"] == pytest.approx(np.mean([game.length for game in played]))
