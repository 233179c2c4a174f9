"""Intrinsic rewards in a whole run: recorded unscaled, scaled for learning, resumable."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.inline_runs import all_sequences, run

from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder.metrics import Scoreboard
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

SMALL = ["env={id: toy/counting}", "env.num=3", "net.torso.hidden=[8]", "stop.return=null"]
DQN = [*SMALL, "algo.learning_starts=5000", "algo.capacity=20000", "algo.fragment=4"]
RND = "{kind: rnd, warm_up: 20, torso: {hidden: [8]}}"
ICM = "{kind: icm, weight: 0.5, hidden: 8, torso: {hidden: [8]}}"
EPISODIC = "{kind: episodic, name: new, features: 4, capacity: 8, neighbours: 2, hidden: 8, torso: {hidden: [8]}}"


def cells(runtime):
    """Stored rewards per stream [envs, cells] in order of time, the flags, and the newest cell of every ring."""
    (table,) = runtime.store.mixture.tables
    ring = table._storage
    length, head = ring._grid.length, ring._windows.head
    rewards = {name: array.reshape(-1, length) for name, array in ring._arrays["rewards"].items()}
    flags = ring._arrays["flags"].reshape(-1, length)
    return rewards, flags, head


def learn_once_more(runtime):
    """Run until the next update."""
    updates = runtime.updates
    for _ in runtime.run():
        if runtime.updates > updates:
            break


def test_recorded_intrinsic_returns_are_discounted_sums_across_episodes():
    discounts = {"rnd": 0.9, "new": 0.7}
    rnd, episodic = RND.replace("warm_up: 20", "warm_up: 0, discount: 0.9"), EPISODIC.replace("}}", "}, discount: 0.7}")
    runtime = run("dqn-cartpole", 300, *DQN, f"curiosity=[{rnd}, {episodic}]")
    rewards, flags, head = cells(runtime)
    for name, discount in discounts.items():
        for ring in range(3):
            total = 0.0
            for t in range(head[ring]):
                total = total * (1.0 if flags[ring, t + 1] & 1 else discount) + rewards[name][ring, t]
                assert rewards[f"{name}/return"][ring, t] == pytest.approx(total, rel=1e-4, abs=1e-6)
        assert (rewards[name][:, : head.min()] > 0).any()
    assert (rewards["rnd"] >= 0).all()


def divided(model, steps):
    """The rewards, with each intrinsic one divided by the std of its returns so far."""
    scales = {name: model.returns[name].std() for name in ("rnd", "icm")}
    assert all(not 0.5 < scale < 2.0 for scale in scales.values())  # otherwise scaling would change little
    return {**steps.rewards, **{name: steps.rewards[name] / float(scale) for name, scale in scales.items()}}


def test_intrinsic_rewards_are_divided_by_the_std_of_their_returns_before_learning():
    runtime = run("ppo-cartpole", 200, *SMALL, "algo.rollout=16", "algo.minibatches=1", f"curiosity=[{RND}, {ICM}]")
    algorithm, model = runtime.learner.algorithm, runtime.learner.model
    ready, prepare = [], algorithm.prepare

    def keep(model, target, batch):
        ready.append((batch.trajectory, prepare(model, target, batch)))
        return ready[-1][1]

    algorithm.prepare = keep
    learn_once_more(runtime)
    recorded, batch = ready[0]
    for name, rewards in divided(model, recorded).items():
        torch.testing.assert_close(batch.trajectory.rewards[name], rewards)


def test_initial_priorities_use_scaled_intrinsic_rewards():
    settings = ["algo.name=apex", "algo.fragment=4", "algo.learning_starts=50", f"curiosity=[{RND}, {ICM}]"]
    runtime = run("dqn-cartpole", 300, *SMALL, *settings)
    algorithm, steps = runtime.learner.algorithm, all_sequences(runtime)
    expected = algorithm._agent.priority(replace(steps, rewards=divided(runtime.learner.model, steps)))
    np.testing.assert_allclose(algorithm.priority(steps), expected, rtol=1e-5)
    assert not np.allclose(algorithm._agent.priority(steps), expected, rtol=1e-2)


def test_all_networks_are_trained_but_the_random_one():
    runtime = run("ppo-cartpole", 48, *SMALL, "algo.rollout=16", "algo.minibatches=1", f"curiosity=[{RND}, {ICM}]")
    fresh = build_runtime(RunPlan.from_config(runtime_config())).learner.model
    before = dict(fresh.named_parameters())
    changed = {name for name, new in runtime.learner.model.named_parameters() if not torch.equal(new, before[name])}
    parts = {".".join(name.split(".")[:3]) for name in changed}
    assert {"curiosity.rnd.predictor", "curiosity.icm.inverse", "curiosity.icm.forward_model"} <= parts
    assert not any(name.startswith("curiosity.rnd.random") for name in changed)
    assert any(name.startswith("agent.heads.rnd") for name in changed)


def runtime_config():
    return load("ppo-cartpole", [*SMALL, "algo.rollout=16", "algo.minibatches=1", f"curiosity=[{RND}, {ICM}]"])


@pytest.mark.parametrize(
    ("curiosity", "message"),
    [
        (f"[{RND}, {RND}]", "two reward streams are called 'rnd'"),
        ("[{kind: rnd, name: extrinsic}]", "two reward streams are called 'extrinsic'"),
        ("[{kind: rdn}]", "curiosity.0: needs a kind: rnd, icm, episodic, novelty, or package.module:Class"),
        ("[{kind: rnd, weigth: 1}]", "unknown key 'curiosity.0.weigth'; did you mean 'curiosity.0.weight'"),
        ("[{kind: rnd, weight: -1}]", "curiosity.0.weight: must be at least 0, not -1"),
        ("[{kind: nowhere.at:All}]", "cannot import 'nowhere.at:All'"),
        ("[{kind: rnd, name: ppo}]", "curiosity: 'ppo' is a name that the algorithm uses itself"),
        ("[{kind: rnd, name: policy}]", "curiosity: 'policy' is a name that the algorithm uses itself"),
        ("[{kind: episodic, capacity: 5}]", "capacity=5 is less than neighbours=10"),
    ],
)
def test_invalid_settings_are_one_line_errors(curiosity, message):
    with pytest.raises(UserError, match=message) as error:
        RunPlan.from_config(load("ppo-cartpole", [f"curiosity={curiosity}"]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("ppo-cartpole", ["algo.rollout=16", "algo.epochs=2", "net.inputs=[reward]", f"curiosity=[{RND}, {ICM}]"]),
        ("r2d2-memory", ["env.args={}", "algo.learning_starts=50", "algo.batch=8", f"curiosity=[{RND}, {EPISODIC}]"]),
    ],
)
def test_run_with_curiosity_resumes_bitwise(resume_differences, preset, settings):
    assert resume_differences(preset, [*SMALL, "net.core.size=8", *settings], 600) == []


def test_ngu_rejects_further_curiosity():
    with pytest.raises(UserError, match="NGU has intrinsic rewards of its own: leave out curiosity"):
        RunPlan.from_config(load("ngu-deepsea", [f"curiosity=[{RND}]"]))


@pytest.mark.parametrize("curiosity", [ICM, EPISODIC])
def test_curiosity_gets_unnormalized_observations_when_the_agent_normalizes(curiosity):
    settings = ["algo.rollout=16", "algo.normalize_observations=true", f"curiosity=[{curiosity}]"]
    runtime = run("ppo-cartpole", 150, *SMALL, *settings)
    (part,) = runtime.learner.algorithm._parts.values()
    seen, learn = [], part.loss

    def keep(module, batch, next_obs):
        seen.append([leaf[batch.trajectory.valid] for leaf in (batch.trajectory.obs, next_obs)])
        return learn(module, batch, next_obs)

    part.loss = keep
    learn_once_more(runtime)
    before, after = seen[0]  # toy/counting: env tag, episode, step
    assert torch.equal(after - before, torch.tensor([0.0, 0.0, 1.0]).expand_as(before))


def test_reward_inputs_of_the_network_are_those_it_acted_on():
    """Ratios are 1 in the first epoch, even if rewards are inputs and curiosity scales its own."""
    settings = ["algo.rollout=16", "algo.minibatches=1", "algo.epochs=1", "net.inputs=[reward]", f"curiosity=[{RND}]"]
    runtime = run("ppo-cartpole", 200, *SMALL, *settings, "net.core={kind: lstm, size: 8}", "net.shared=true")
    # So that scaled rewards differ greatly from the recorded ones.
    runtime.learner.model.scale = lambda name: torch.tensor(1e-7)
    runtime.learner.drain_metrics()
    learn_once_more(runtime)
    assert runtime.learner.drain_metrics()["loss/kl"] == pytest.approx(0.0, abs=1e-9)


def test_deep_sea_is_solved_with_curiosity_and_not_without():
    """A random policy finds the treasure of size 10 once in 1,024 episodes, and each move towards it costs."""
    with_curiosity, steps = final_score_of([], 60_000)
    without, _ = final_score_of(["curiosity=[]"], steps)
    assert with_curiosity > 0.9
    assert without < 0.1


def final_score_of(settings, max_env_steps):
    """The mean score of the last 100 episodes once it is near 1, or after `most` env steps; and the number of steps."""
    runtime = build_runtime(RunPlan.from_config(load("ppo-rnd-deepsea", ["env.args.size=10", "seed=1", *settings])))
    scores = Scoreboard(100)
    for _ in runtime.run():
        scores.add(runtime.episodes())
        if (scores.full and scores.mean > 0.9) or runtime.env_steps >= max_env_steps:
            break
    return scores.mean, runtime.env_steps
