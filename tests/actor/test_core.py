import numpy as np
import pytest
import torch

from starling import tree
from starling.actor.core import Policy
from starling.config.load import load
from starling.launch.plan import RunPlan, build_model
from starling.types import EnvStep

ROWS = 4


@pytest.mark.parametrize(("preset", "core"), [("impala-cartpole", "none"), ("r2d2-cartpole", "lstm")])
def test_mixed_precision_acts_in_bfloat16_and_records_float32(preset, core):
    run_plan = RunPlan.from_config(load(preset, [f"net.core.kind={core}"]))
    model = build_model(run_plan)
    step = EnvStep(
        np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32),
        np.ones(ROWS, bool),
        np.zeros(ROWS, np.float32),
        *(np.zeros(ROWS, bool) for _ in range(2)),
        np.ones(ROWS, bool),
        np.zeros(ROWS, bool),
    )
    outputs = []
    for mixed in (False, True):
        policy = Policy(run_plan.algorithm, model, num_envs=ROWS, explore=True, mixed=mixed)
        group = policy.group(np.arange(ROWS), seed=0)
        group.seen = step
        (output,) = policy.infer([group])
        outputs.append(dict(tree.items((output.extras, output.state))))
    plain, in_bfloat16 = outputs
    assert plain.keys() == in_bfloat16.keys() != set()
    for name, array in in_bfloat16.items():
        assert array.dtype == plain[name].dtype
        assert np.allclose(array, plain[name], atol=0.02)
    assert any(not np.array_equal(array, plain[name]) for name, array in in_bfloat16.items())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
