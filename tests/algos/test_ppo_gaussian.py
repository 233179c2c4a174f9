"""PPO with a Gaussian policy: normalizers belong to the agent, and ratios begin at 1 although statistics change."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.inline_runs import run

from starling.algos.ppo.config import PPOConfig
from starling.algos.ppo.ppo import PPO
from starling.api import train
from starling.config.parts import NetConfig, TorsoConfig
from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.nets.normalizers import Normalized
from starling.ops.distributions import Gaussian
from starling.tools.evaluate import evaluate_run
from starling.types import EnvSpec

ENV = EnvSpec("x", spaces.Box(-9, 9, (5,), np.float32), spaces.Box(-1, 1, (2,), np.float32))
PENDULUM = [
    *["env={id: Pendulum-v1, num: 4}", "algo.rollout=64", "algo.epochs=2", "algo.minibatches=2", "algo.log_std=-0.5"],
    *["algo.policy=gaussian", "algo.normalize_observations=true", "algo.normalize_rewards=true", "stop.return=null"],
]


def next_batch(runtime):
    """The next batch of a run, which its learner does not get."""

    class CaughtError(Exception):
        pass

    def catch(sample, env_steps):
        raise CaughtError(sample)

    runtime.learner.step = catch
    with pytest.raises(CaughtError) as caught:
        for _ in runtime.run():
            pass
    (sample,) = caught.value.args
    return runtime.learner._to_batch(sample, runtime.learner.progress(runtime.env_steps))[0]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_ratios_begin_at_1_although_statistics_change(core):
    runtime = run("ppo-cartpole", 1100, *PENDULUM, f"net.core={{kind: {core}, size: 8}}")
    model, algorithm = runtime.learner.model, runtime.learner.algorithm
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        batch = algorithm.prepare(model, None, next_batch(runtime))
    for name, buffer in model.named_buffers():
        assert not torch.equal(before[name], buffer), name
    metrics = algorithm.loss(model, None, batch).metrics()
    assert metrics["kl"].abs() < 1e-9
    assert metrics["clipped"] == 0


def test_rewards_are_scaled_by_the_std_of_the_return():
    """With lambda 0 a target is one reward and the next value, both in the scale of the values."""
    runtime = run("ppo-cartpole", 1100, *PENDULUM, "algo.gae_lambda=0")
    batch, model = next_batch(runtime), runtime.learner.model
    with torch.no_grad():
        seen = model.normalizer(batch.trajectory.obs)
        outputs, _, _ = model.unroll(Normalized(seen), batch.trajectory.first, None, {}, {})
        prepared = runtime.learner.algorithm.prepare(model, None, batch).prepared
    v = outputs["extrinsic"]
    scale = model.reward_scales["extrinsic"].returns.std()
    assert scale > 3.0
    raw, valid = batch.trajectory.rewards["extrinsic"], batch.trajectory.valid
    expected = torch.where(valid, raw / scale + 0.98 * v[1:], v[:-1])
    torch.testing.assert_close(prepared.value_target["extrinsic"], expected, rtol=1e-4, atol=1e-5)


def test_statistics_are_saved_and_not_changed_by_evaluation(tmp_path):
    result = train("ppo-cartpole", [*PENDULUM, "stop.env_steps=1024", "run=mine"], runs=tmp_path)
    torch.set_num_threads(1)
    _, state, _ = checkpoint.find(result.folder / "checkpoints", "newest", parts=("learner",))
    saved = {name: value for name, value in state["learner"]["model"].items() if "moments" in name or "scales" in name}
    assert saved["normalizer.moments.observation.count"] == 1020  # every env is reset once
    assert abs(saved["normalizer.moments.observation.total"]).min() > 0
    assert saved["reward_scales.extrinsic.returns.count"] == 1020
    scores = [
        evaluate_run(result.folder, episodes=2, seed=1, which="newest", protocol="as-trained", warn=print) for _ in "12"
    ]
    assert scores[0]["mean"] == scores[1]["mean"]


def test_policy_is_gaussian_with_a_state_independent_std():
    algorithm = PPO(PPOConfig(name="ppo", log_std=-0.7), NetConfig(torso=TorsoConfig(hidden=[8])))
    model = algorithm.build(ENV, algorithm.streams())
    outputs, _ = model.step(torch.randn(6, 5), torch.zeros(6, dtype=torch.bool), {})
    assert isinstance(outputs["policy"], Gaussian)
    torch.testing.assert_close(outputs["policy"].log_std, torch.full((6, 2), -0.7))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.Discrete(2),
            r"algo.policy=gaussian needs a Box action space; x has Discrete\(2\): set algo.policy=auto",
        ),
        (spaces.Box(-1, 1, (2, 2), np.float32), "needs a Box of actions with one axis"),
    ],
)
def test_action_spaces_that_a_gaussian_policy_does_not_support_are_rejected(space, message):
    algorithm = PPO(PPOConfig(name="ppo", policy="gaussian"), NetConfig())
    with pytest.raises(UserError, match=message):
        algorithm.build(EnvSpec("x", ENV.observation, space), algorithm.streams())
