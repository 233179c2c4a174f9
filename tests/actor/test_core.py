import numpy as np
import pytest
import torch

from starling import tree
from starling.actor.core import Policy
from starling.config.load import load
from starling.launch.plan import RunPlan, build_model
from starling.types import EnvStep

NUM_ENVS = 4


@pytest.mark.parametrize(("preset", "core"), [("impala-cartpole", "none"), ("r2d2-cartpole", "lstm")])
def test_mixed_precision_acts_in_bfloat16_and_records_float32(preset, core):
    run_plan = RunPlan.from_config(load(preset, [f"net.core.kind={core}"]))
    model = build_model(run_plan)
    step = EnvStep(
        np.random.default_rng(0).normal(size=(NUM_ENVS, 4)).astype(np.float32),
        np.ones(NUM_ENVS, bool),
        np.zeros(NUM_ENVS, np.float32),
        *(np.zeros(NUM_ENVS, bool) for _ in range(2)),
        np.ones(NUM_ENVS, bool),
        np.zeros(NUM_ENVS, bool),
    )
    outputs = []
    for lower in (None, torch.bfloat16):
        policy = Policy(run_plan.algorithm, model, num_envs=NUM_ENVS, explore=True, autocast=lower)
        group = policy.new_group(np.arange(NUM_ENVS), seed=0)
        group.latest = step
        (output,) = policy.infer([group])
        outputs.append(dict(tree.items((output.extras, output.state))))
    plain, in_bfloat16 = outputs
    assert plain.keys() == in_bfloat16.keys() != set()
    for name, array in in_bfloat16.items():
        assert array.dtype == plain[name].dtype
        assert np.allclose(array, plain[name], atol=0.02)
    assert any(not np.array_equal(array, plain[name]) for name, array in in_bfloat16.items())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
