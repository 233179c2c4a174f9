"""NGU: which policy plays, its rewards, its losses, and bitwise resuming."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import inline_runs
from support.inline_runs import all_sequences
from support.policy_batches import env_spec
from support.sequence_batches import SETTINGS as SEQUENCES
from support.sequence_batches import SlowStream, make_batch, slow_losses
from support.slow_losses import TORSO, assert_losses_match, build, build_target, float64_net

import starling
from starling import tree
from starling.algos.base import IntrinsicInput
from starling.algos.ngu.config import NGUConfig
from starling.algos.ngu.ngu import NGU, NOVELTY
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.launch.plan import RunPlan, build_model
from starling.state_io import freeze
from starling.tools.evaluate import evaluate_run, load_agent

SMALL = [
    *["env={id: toy/counting}", "env.num=3", "net.torso.hidden=[8]", "net.core.size=4", "stop.return=null"],
    *["algo.policies=4", "algo.unroll=4", "algo.period=2", "algo.fragment=4", "algo.batch=8", "algo.capacity=20000"],
    *["algo.lifelong={kind: rnd, torso: {hidden: [8]}}", "algo.discount=0.9", "algo.min_discount=0.5"],
    *["algo.novelty=0.3", "algo.meta=null"],
    "algo.episodic={kind: episodic, features: 4, capacity: 8, neighbours: 2, hidden: 8, torso: {hidden: [8]}}",
]
META = "algo.meta={window: 6, epsilon: 0.3}"


def run(steps, *overrides):
    return inline_runs.run("ngu-deepsea", steps, *SMALL, *overrides)


def intrinsic_input(first, reward, ended=None, explore=True, arm=0, noise=0.9):
    num_envs = len(first)
    first, ended = torch.tensor(first), torch.tensor(ended or [False] * num_envs)
    return IntrinsicInput(
        obs=torch.zeros(num_envs, 3),
        first=first,
        ended=ended,
        begins=first.nonzero().flatten(),
        ends=ended.nonzero().flatten(),
        action=torch.zeros(num_envs, dtype=torch.int64),
        reward=torch.tensor(reward),
        env_index=torch.arange(num_envs) + 5,
        explore=explore,
        arm=torch.full((num_envs,), arm),
        noise=lambda n: torch.full((num_envs, n), noise),
    )


def test_without_a_bandit_each_env_has_a_fixed_policy():
    runtime = run(200, "algo.learning_starts=5000")
    (table,) = runtime.store.mixture.tables
    items = table._storage.items()
    steps = table._storage.gather(items.slots)
    np.testing.assert_array_equal(steps.carry["arm"], items.env_index % 4)
    assert set(items.env_index.tolist()) == {0, 1, 2}
    assert (steps.rewards[NOVELTY][steps.valid] > 0).any()


def test_bandit_gets_the_full_episode_return_and_chooses_the_next_policy():
    algorithm = RunPlan.from_config(load("ngu-deepsea", [*SMALL, META])).algorithm
    memory = algorithm.intrinsic_state(2)
    algorithm._arms.change(intrinsic_input([True, True], [0.0, 0.0]), memory)
    assert memory["carry"]["arm"].tolist() == [0, 0]  # the first one that was never played
    algorithm._arms.change(intrinsic_input([False, False], [1.5, 2.0]), memory)
    algorithm._arms.change(intrinsic_input([False, False], [1.0, -1.0], ended=[True, False]), memory)
    algorithm._arms.change(intrinsic_input([True, False], [9.0, 0.0]), memory)  # a reset has no reward
    assert memory["carry"]["arm"].tolist() == [1, 0]
    assert memory["bandit"]["arm"][0, 0] == 0
    assert memory["bandit"]["value"][0, 0] == 2.5
    assert memory["bandit"]["played"].tolist() == [1, 0]
    assert memory["total"].tolist() == [0.0, 1.0]
    # The second env starts a new episode without an end.
    algorithm._arms.change(intrinsic_input([False, True], [4.0, 0.0]), memory)
    assert memory["bandit"]["played"].tolist() == [1, 0]
    assert memory["total"].tolist() == [4.0, 0.0]


CUTS = {
    "nothing": [],
    "stagger": ["env={id: toy/identity, args: {length: 9}, stagger: 5}"],
    "fault": ["env={id: 'support.faulty_env:Faulty', args: {what: nan_reward, when: 20, once: FILE, length: 9}}"],
    "checkpoint": ["checkpoint.exact=true"],
}


@pytest.mark.parametrize("cut", CUTS)
def test_bandits_learn_from_whole_episodes_only(tmp_path, cut):
    """Bandit histories are the episodes that env loops report, which exclude those that were cut short."""
    settings = [setting.replace("FILE", str(tmp_path / "once")) for setting in CUTS[cut]]
    meta = "algo.meta={window: 1000, epsilon: 0.3}"
    runtime = inline_runs.build("ngu-deepsea", *SMALL, meta, "algo.learning_starts=5000", *settings, "env.num=3")
    steps, totals = runtime.run(), {i: [] for i in range(3)}
    for number in range(120):
        next(steps)
        if cut == "checkpoint" and number % 8 == 0:
            runtime.save(with_tables=False)
        for episode in runtime.episodes():
            totals[episode.env_index].append(episode.total)
    assert sum(loop.dropped for loop in runtime.loops) == (cut == "fault")
    groups = [group for core in runtime._cores for group in core._groups.values()]
    for group in groups:
        bandit = group.intrinsic_state["bandit"]
        for i, returns, played in zip(group.env_index.tolist(), bandit["value"], bandit["played"], strict=True):
            assert played > 5
            assert returns[:played].tolist() == pytest.approx(totals[i][:played])
            assert len(totals[i]) - played <= 1  # an end is recorded only with the next action


@pytest.mark.parametrize("meta", [[], [META]])
def test_without_exploration_the_given_policy_plays_from_the_next_episode_on(meta):
    algorithm = RunPlan.from_config(load("ngu-deepsea", [*SMALL, *meta])).algorithm
    memory = algorithm.intrinsic_state(2)
    algorithm._arms.change(intrinsic_input([True, True], [0.0, 0.0], explore=False, arm=2), memory)
    assert memory["carry"]["arm"].tolist() == [2, 2]
    algorithm._arms.change(
        intrinsic_input([False, False], [1.0, 1.0], explore=False, arm=3, ended=[True, False]), memory
    )
    algorithm._arms.change(intrinsic_input([True, False], [0.0, 1.0], explore=False, arm=3), memory)
    assert memory["carry"]["arm"].tolist() == [3, 2]
    assert all((played == 0).all() for name, played in memory["bandit"].items() if name == "played")


def test_evaluators_try_policies_only_with_a_meta_controller():
    choose = [
        RunPlan.from_config(load("ngu-deepsea", [*SMALL, *settings])).algorithm.trials() for settings in ([], [META])
    ]
    assert choose[0] is None
    assert choose[1].due == 10
    assert (
        RunPlan.from_config(load("ngu-deepsea", [*SMALL, "algo.meta={window: 6, trials: 1}"])).algorithm.trials().due
        == 4
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("algo.meta={window: 3}", "meta.window=3 is less than policies=4: raise it"),
        ("algo.epsilon_bandit={}", "ngu's bandits choose among its policies"),
        ("algo.lifelong={weight: 2}", "lifelong.weight has no effect here"),
        ("algo.episodic={lambda: 0.5}", "episodic.lambda has no effect here"),
    ],
)
def test_settings_without_effect_are_rejected(setting, message):
    with pytest.raises(UserError, match=message):
        load("ngu-deepsea", [*SMALL, setting])


def test_novelty_is_the_episodic_reward_scaled_by_the_clipped_lifelong_novelty():
    run_plan = RunPlan.from_config(load("ngu-deepsea", [*SMALL, "algo.lifelong_limit=3"]))
    algorithm, model = run_plan.algorithm, build_model(run_plan)
    memory = algorithm.intrinsic_state(4)
    algorithm._episodic = SimpleNamespace(reward=lambda *_: torch.tensor([0.5, 0.5, 0.5, 0.5]))
    errors = torch.tensor([0.0, 3.5, 9.0, 9.0])
    fixed = {"forward": lambda self, obs: errors, "warm": torch.tensor(True)}
    model.lifelong = type("Fixed", (torch.nn.Module,), fixed)()
    inputs = intrinsic_input([False, False, False, True], [0.0] * 4)
    before_update = algorithm.intrinsic_rewards(model, inputs, memory)
    assert before_update[NOVELTY].tolist() == [0.5, 0.5, 0.5, 0.0], "no error is unusual before any was seen"
    model.update(torch.tensor([1.0, 3.0]))  # mean 2, std 1
    novelty_now = algorithm.intrinsic_rewards(model, inputs, memory)
    assert novelty_now[NOVELTY].tolist() == pytest.approx([0.5 * 1, 0.5 * 2.5, 0.5 * 3, 0.0], rel=1e-4)


def test_bfloat16_errors_update_the_statistics_exactly():
    model, other = (build_model(RunPlan.from_config(load("ngu-deepsea", SMALL))) for _ in range(2))
    model.update(torch.tensor([1.0, 3.0], dtype=torch.bfloat16))
    other.update(torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(model.error, other.error, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("separate", [False, True])
def test_each_sequence_is_trained_with_the_reward_and_discount_of_its_policy(separate):
    runtime = run(200, "algo.learning_starts=5000", f"algo.separate_networks={separate}".lower())
    algorithm, steps = runtime.learner.algorithm, tree.to_torch(all_sequences(runtime))
    arm = steps.carry["arm"]
    gamma = 1 - torch.exp(((3 - arm) * np.log(0.1) + arm * np.log(0.5)) / 3)
    beta = torch.tensor([0.0, *(0.3 / (1 + np.exp(-10 * (2 * i - 2) / 2)) for i in (1, 2)), 0.3])[arm]
    streams = {stream.name: algorithm.stream_terms(steps, stream) for stream in algorithm.streams()}
    ends = torch.where(steps.terminated, 0.0, 1.0)
    for terms in streams.values():
        torch.testing.assert_close(terms.discount_t, (ends * gamma).float())
    reward, novelty = steps.rewards["extrinsic"], steps.rewards[NOVELTY]
    q = {name: torch.randn(*reward.shape, 2, generator=torch.Generator().manual_seed(0)) for name in streams}
    if separate:
        torch.testing.assert_close(streams["extrinsic"].r_t, reward)
        torch.testing.assert_close(streams[NOVELTY].r_t, novelty)
        expected = q["extrinsic"] + beta[:, None] * q[NOVELTY]
    else:
        torch.testing.assert_close(streams["extrinsic"].r_t, (reward + beta * novelty).float())
        expected = q["extrinsic"]
    torch.testing.assert_close(algorithm.combine_q(q, steps.carry), expected.float())


POLICIES = {"policies": 4, "novelty": 0.4, "discount": 0.95, "min_discount": 0.6}


def slow_policies():
    """Novelty weights and discounts of the four policies (2002.06038, appendix A)."""
    beta = [0.0, *(0.4 / (1 + math.exp(-10 * (2 * i - 2) / 2)) for i in (1, 2)), 0.4]
    gamma = [1 - math.exp(((3 - i) * math.log(1 - 0.95) + i * math.log(1 - 0.6)) / 3) for i in range(4)]
    return beta, gamma


def slow_curious_losses(model, steps, count):
    """RND's error at the next observation and the inverse model's cross-entropy, means over the last `count` steps."""
    errors, guesses = [], []
    for b in range(steps.batch_size):
        end = int(steps.valid[:, b].sum())
        for t in range(max(0, end - count), end):
            before, after = steps.obs[t, b : b + 1], steps.obs[t + 1, b : b + 1]
            mean, std = model.lifelong.moments[0].mean_and_std()
            intrinsic_input = ((after - mean) / std).clamp(-2.0, 2.0)
            error = model.lifelong.predictor(intrinsic_input)[0] - model.lifelong.random(intrinsic_input)[0].detach()
            errors.append((error**2).mean())
            pair = [model.embedding.encode(before)[0], model.embedding.encode(after)[0]]
            guesses.append(-model.embedding.guess(torch.cat(pair)).log_softmax(-1)[steps.action[t, b]])
    return {"lifelong": sum(errors) / len(errors), "embedding": sum(guesses) / len(guesses)}


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"retrace": None, "n_step": 2}, {"double": False, "eval_epsilon": 0.2}], ids=str
)
def test_losses_and_gradients_match_the_reference(separate, settings):
    """One network trained on r_e + beta_i r_i, or one network per reward and a policy greedy in Q_e + beta_i Q_i."""
    lifelong = {"kind": "rnd", "torso": TORSO, "features": 3, "clip": 2.0}
    episodic = {"kind": "episodic", "torso": TORSO, "features": 4, "hidden": 5}
    parts = {
        "lifelong": lifelong,
        "episodic": episodic,
        "predictor_steps": 2,
        "separate_networks": separate,
        "delta_q": False,
    }
    config = NGUConfig(name="ngu", **{**SEQUENCES, **POLICIES, **parts, "retrace": 0.9, **settings})
    algorithm = NGU(config, float64_net("lstm", inputs=["action", "reward"]))
    model, target = build(algorithm, env_spec()), build_target(algorithm, env_spec())
    batch = make_batch(model, rewards=("extrinsic", NOVELTY), arms=4)
    steps = batch.trajectory
    model.lifelong.update(0.3 * steps.obs[1:] + 1.0, steps.valid)  # statistics for which normalization matters
    arm, (beta, gamma) = steps.carry["arm"].tolist(), slow_policies()
    ones, weights, discount = [1.0] * steps.batch_size, [beta[i] for i in arm], [gamma[i] for i in arm]
    reward, novelty = steps.rewards["extrinsic"], steps.rewards[NOVELTY]
    if separate:
        streams = [SlowStream("extrinsic", reward, discount, ones), SlowStream(NOVELTY, novelty, discount, weights)]
    else:
        streams = [SlowStream("extrinsic", reward + torch.tensor(weights) * novelty, discount, ones)]
    intrinsic_input = replace(steps, obs={"obs": steps.obs, "arm": steps.carry["arm"].expand(steps.length + 1, -1)})
    slow, _ = slow_losses(model.agent, target.agent, replace(batch, trajectory=intrinsic_input), config, streams)
    per_optimizer = slow if separate else {"q": slow["extrinsic"]}
    expected = {**per_optimizer, **slow_curious_losses(model, steps, count=2)}
    assert_losses_match(algorithm, model, target, batch, expected, rtol=1e-5)  # NGU keeps betas and gammas in float32


def test_unrolled_q_values_equal_those_recorded_while_acting():
    """Weights have not changed, so Q values agree only if arms, states, actions, and both rewards are aligned."""
    runtime = run(300, "algo.learning_starts=5000", META, "net.inputs=[action, reward]")
    steps, model = tree.to_torch(all_sequences(runtime)), runtime.learner.model
    assert len(steps.carry["arm"].unique()) > 1
    arm = steps.carry["arm"].expand(steps.length + 1, -1)
    with_arm = replace(steps, obs={"obs": steps.obs, "arm": arm})
    q, _, _ = model.agent.unroll(with_arm.obs, with_arm.first, with_arm.action, with_arm.rewards, with_arm.carry)
    for t in range(steps.length):
        valid = steps.valid[t]
        torch.testing.assert_close(
            q["extrinsic"][t][valid], steps.extras["q"]["extrinsic"][t][valid], rtol=1e-4, atol=1e-5
        )


def test_all_networks_are_trained_but_the_random_one():
    settings = ["env={id: toy/deep-sea, num: 3, args: {size: 5}}", "algo.separate_networks=true"]
    trained = run(300, "algo.learning_starts=20", "algo.updates_per_step=0.1", *settings)
    fresh = build_model(RunPlan.from_config(load("ngu-deepsea", [*SMALL, *settings])))
    before = dict(fresh.named_parameters())
    changed = {
        ".".join(name.split(".")[:3])
        for name, new in trained.learner.model.named_parameters()
        if not torch.equal(new, before[name])
    }
    assert {"agent.trunks.extrinsic", "agent.trunks.novelty", "agent.heads.novelty"} <= changed
    assert any(name.startswith("lifelong.predictor") for name in changed)
    assert any(name.startswith("embedding") for name in changed)
    assert not any(name.startswith("lifelong.random") for name in changed)


def test_the_loss_of_the_novelty_network_and_the_novelty_reward_have_keys_of_their_own():
    runtime = run(300, "algo.learning_starts=20", "algo.updates_per_step=0.1", "algo.separate_networks=true")
    row = runtime.learner.drain_metrics()
    assert {"loss/extrinsic", "loss/novelty", "loss/reward/novelty"} <= row.keys()
    assert row["loss/novelty"] != row["loss/reward/novelty"]


def test_agent57_with_too_few_policies_is_rejected():
    with pytest.raises(UserError, match=r"algo.family=agent57: .*at least 10 policies, not 4"):
        RunPlan.from_config(load("ngu-deepsea", [*SMALL, "algo.family=agent57"]))


@pytest.mark.parametrize("separate", ["false", "true"])
def test_ngu_resumes_bitwise(resume_differences, separate):
    settings = [
        *SMALL,
        META,
        f"algo.separate_networks={separate}",
        "algo.learning_starts=50",
        "algo.updates_per_step=0.05",
    ]
    assert resume_differences("ngu-deepsea", settings, 600) == []


EVALUATED = [
    *SMALL, "algo.meta={window: 12, epsilon: 0.5, trials: 5}", "env={id: toy/deep-sea, num: 3, args: {size: 4}}",
    "algo.separate_networks=true", "algo.learning_starts=50", "algo.updates_per_step=0.05",
    "eval={every: 200, episodes: 2}",
]  # fmt: skip


def test_policy_trials_of_an_evaluator_are_saved_and_restored(resume_differences, tmp_path):
    assert resume_differences("ngu-deepsea", EVALUATED, 600) == []
    whole = RunFolder(tmp_path / "whole")
    rows = [row for row in read_rows(whole.metrics_file) if "eval/arm" in row]
    assert len(rows) == 6
    assert len({row["eval/arm/0/share"] for row in rows}) > 1  # its trials differ between evaluations
    first, last = (checkpoint.load(folder)["evaluator"] for folder in sorted(whole.checkpoints.glob("step-*")))
    assert first["played"] < last["played"] == 5 * 6
    assert len(last["arms"]) == 12


def test_loaded_agent_plays_the_best_policy_of_the_evaluator(tmp_path):
    settings = [*EVALUATED, "net.inputs=[action, reward]", "stop.env_steps=400"]
    run = starling.train("ngu-deepsea", [*settings, "run=evaluated"], runs=tmp_path).folder
    newest = checkpoint.find(RunFolder(run).checkpoints)[0]
    saved_evaluator = {"arms": [0, 1, 2, 3], "returns": [0.0, 1.0, 5.0, 2.0], "played": 4}
    parts = {**checkpoint.load(newest), "evaluator": saved_evaluator}
    checkpoint.write(newest.parent, 10_000, freeze(parts), retention=checkpoint.Retention())
    agent = load_agent(run, which="newest", protocol="as-trained", warn=print)
    assert agent.arm == 2
    result = evaluate_run(run, episodes=2, seed=0, which="newest", protocol="as-trained", warn=print)
    assert result["actions"] == "epsilon 0, policy 2"
    loaded, obs = starling.load(run), np.zeros(agent.run_plan.env.observation.shape, np.float32)
    _, state_before = loaded.act(obs)
    _, state_after = loaded.act(obs, state_before, reward=0.5)
    assert state_before.carry["arm"].tolist() == state_after.carry["arm"].tolist() == [2]
    assert state_after.carry["rewards"]["extrinsic"].tolist() == [0.5]
    # Using a state does not modify it.
    assert loaded.act(obs, state_before, reward=0.5)[1].carry["rewards"] == state_after.carry["rewards"]


def test_loaded_agent_without_an_evaluation_plays_the_exploiting_policy(tmp_path):
    settings = [*EVALUATED, "eval.every=null", "stop.env_steps=400", "run=alone"]
    run = starling.train("ngu-deepsea", settings, runs=tmp_path).folder
    assert load_agent(run, which="newest", protocol="as-trained", warn=print).arm == 0
