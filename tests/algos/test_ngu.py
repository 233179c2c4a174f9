"""NGU: which policy plays, what it is rewarded with, what it learns, and that it resumes to the bit."""

import math
from dataclasses import replace
from types import SimpleNamespace

import inline_runs
import numpy as np
import pytest
import torch
from inline_runs import windows
from policy_batches import env_spec
from sequence_batches import SETTINGS as SEQUENCES
from sequence_batches import SlowStream, make_batch, slow_losses
from slow_losses import TORSO, assert_losses_match, build, build_target, float64_net

from starling import tree
from starling.algos.base import ActInput, Seen
from starling.algos.ngu import NGU, NOVELTY, SCORE
from starling.blueprint import build_model, draw
from starling.config.algo.ngu import NGUConfig
from starling.config.load import load
from starling.envs.toy import counting_reward
from starling.errors import UserError
from starling.types import Progress

SMALL = [
    *["env={id: toy/counting}", "env.num=3", "net.torso.hidden=[8]", "net.core.size=4", "stop.return=null"],
    *["algo.policies=4", "algo.unroll=4", "algo.period=2", "algo.fragment=4", "algo.batch=8", "algo.capacity=20000"],
    *["algo.lifelong={kind: rnd, torso: {hidden: [8]}}", "algo.discount=0.9", "algo.least_discount=0.5"],
    *["algo.novelty=0.3", "algo.meta=null"],
    "algo.episodic={kind: episodic, features: 4, capacity: 8, neighbours: 2, hidden: 8, torso: {hidden: [8]}}",
]
META = "algo.meta={window: 6, epsilon: 0.3}"


def run(steps, *overrides):
    return inline_runs.run("ngu-deepsea", steps, *SMALL, *overrides)


def seen(first, reward, explore=True, noise=0.9):
    rows = len(first)
    return Seen(
        torch.zeros(rows, 3), torch.tensor(first), torch.zeros(rows, dtype=torch.int64), torch.tensor(reward),
        torch.arange(rows) + 5, explore, lambda n: torch.full((rows, n), noise),
    )  # fmt: skip


def test_without_a_bandit_each_env_row_has_its_own_policy():
    runtime = run(200, "algo.learning_starts=5000")
    (table,) = runtime.store.mixture.tables
    items = table._storage.items()
    steps = table._storage.gather(items.slots)
    np.testing.assert_array_equal(steps.carry["arm"], items.rows % 4)
    assert set(items.rows.tolist()) == {0, 1, 2}
    assert (steps.rewards[NOVELTY][steps.valid] > 0).any()


def test_the_bandit_hears_the_whole_return_of_an_episode_and_chooses_the_next_policy():
    algorithm = draw(load("ngu-deepsea", [*SMALL, META])).algorithm
    memory = algorithm.memory(2)
    algorithm._change_arms(None, seen([True, True], [0.0, 0.0]), memory)
    assert memory["carry"]["arm"].tolist() == [0, 0]  # the first that was never played
    algorithm._change_arms(None, seen([False, False], [1.5, 2.0]), memory)
    algorithm._change_arms(None, seen([False, False], [1.0, -1.0]), memory)
    algorithm._change_arms(None, seen([True, False], [9.0, 0.0]), memory)  # a reset has no reward
    assert memory["carry"]["arm"].tolist() == [1, 0]
    assert memory["bandit"]["arm"][0, 0] == 0
    assert memory["bandit"]["value"][0, 0] == 2.5
    assert memory["bandit"]["played"].tolist() == [1, 0]
    assert memory["total"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("meta", "expected"), [([], [0, 0]), ([META], [2, 2])])
def test_whoever_does_not_explore_plays_the_policy_that_returned_most_of_late_if_there_is_a_bandit(meta, expected):
    blueprint = draw(load("ngu-deepsea", [*SMALL, *meta]))
    algorithm, model = blueprint.algorithm, build_model(blueprint)
    memory, begin = algorithm.memory(2), seen([True, True], [0.0, 0.0], explore=False)
    algorithm._change_arms(model, begin, memory)
    assert memory["carry"]["arm"].tolist() == [0, 0]  # nothing is known yet
    model.arms.update(torch.tensor([1, 2, 2]), torch.tensor([-3.0, -1.0, -2.0]))
    algorithm._change_arms(model, begin, memory)
    assert memory["carry"]["arm"].tolist() == expected


def test_a_score_is_the_sum_of_raw_rewards_since_the_episode_began():
    runtime = run(300, "algo.learning_starts=5000", META, "env.reward_clip=0.25")
    steps = tree.to_torch(windows(runtime))
    score, obs = steps.rewards[SCORE], steps.obs[:-1].long()  # [T, B], [T, B, 3]
    raw = torch.zeros_like(score)
    for t, b in steps.valid.nonzero().tolist():
        raw[t, b] = counting_reward(*obs[t, b].tolist(), int(steps.action[t, b]))
    begins, goes_on = steps.valid & (obs[..., 2] == 0), steps.valid[:-1] & steps.valid[1:]
    assert begins.sum() > 10
    torch.testing.assert_close(score[begins], raw[begins])
    torch.testing.assert_close(score.diff(dim=0)[goes_on], raw[1:][goes_on], rtol=1e-4, atol=1e-4)
    assert steps.rewards["extrinsic"].abs().max() == 0.25 < raw.max()


def test_the_learner_notes_the_returns_of_episodes_that_end():
    runtime = run(400, "algo.learning_starts=10", "algo.updates_per_step=0.1", META)
    algorithm, model, target = (getattr(runtime.learner, name) for name in ("algorithm", "model", "_target"))
    model.arms.load_state_dict({name: torch.zeros(4) for name in model.arms.state_dict()})
    steps = tree.to_torch(windows(runtime))
    ended_t = steps.valid & (steps.terminated | steps.truncated)
    algorithm.prepare(model, target, SimpleNamespace(trajectory=steps))
    metrics = model.arms.metrics()
    for arm in range(4):
        mine = ended_t & (steps.carry["arm"] == arm)
        assert float(metrics[f"arm/{arm}/return"]) == pytest.approx(float(steps.rewards[SCORE][mine].mean()), rel=1e-4)
        assert float(metrics[f"arm/{arm}/share"]) == pytest.approx(float(mine.sum() / ended_t.sum()), rel=1e-4)
    assert "loss/arm/0/return" in runtime.learner.drain_metrics()


def test_policies_may_differ_in_epsilon_alone():
    settings = [*SMALL, META, "algo.varies=epsilon", "algo.epsilon=0.4", "algo.ladder=3"]
    runtime = inline_runs.run("ngu-deepsea", 300, *settings, "algo.learning_starts=5000")
    algorithm, model, steps = runtime.learner.algorithm, runtime.learner.model, tree.to_torch(windows(runtime))
    (stream,) = algorithm.streams()
    terms = algorithm.terms(steps, stream)
    torch.testing.assert_close(terms.r_t, steps.rewards["extrinsic"])
    torch.testing.assert_close(terms.discount_t, torch.where(steps.terminated, 0.0, 0.9))
    carry = {**model.initial_carry(4), "arm": torch.arange(4)}
    inputs = ActInput(
        torch.zeros(4, *steps.obs.shape[2:]), torch.ones(4, dtype=torch.bool), carry, torch.zeros(4, dtype=torch.int64),
        3, Progress(), True, lambda n: torch.full((4, n), 0.5),
    )  # fmt: skip
    torch.testing.assert_close(algorithm.epsilon(inputs), torch.tensor([0.4, 0.4**2, 0.4**3, 0.4**4]))
    assert algorithm.epsilon(replace(inputs, explore=False)) == 0
    q = algorithm.act(model, inputs).extras["q"]["extrinsic"]
    assert (q == q[0]).all()  # the network does not know which it is
    mu = steps.extras["mu"][:-1][steps.valid]
    least = (0.4 ** (1 + steps.carry["arm"].float())).expand_as(steps.valid)[steps.valid] / 4  # of four actions
    assert (((mu - least).abs() < 1e-5) | ((mu - (1 - 3 * least)).abs() < 1e-5)).all()
    assert len(steps.carry["arm"].unique()) > 1
    with pytest.raises(UserError, match="set separate=false"):
        load("ngu-deepsea", [*settings, "algo.separate=true"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("algo.meta={window: 3}", "meta.window=3 forgets policies before policies=4 have played"),
        ("algo.lifelong={weight: 2}", "lifelong.weight means nothing here"),
        ("algo.episodic={lambda: 0.5}", "episodic.lambda means nothing here"),
    ],
)
def test_settings_without_a_use_are_refused(setting, message):
    with pytest.raises(UserError, match=message):
        load("ngu-deepsea", [*SMALL, setting])


def test_novelty_is_that_of_the_episode_modulated_within_limits():
    blueprint = draw(load("ngu-deepsea", [*SMALL, "algo.lifelong_limit=3"]))
    algorithm, model = blueprint.algorithm, build_model(blueprint)
    memory = algorithm.memory(4)
    algorithm._episodic = SimpleNamespace(reward=lambda *_: torch.tensor([0.5, 0.5, 0.5, 0.5]))
    errors = torch.tensor([0.0, 3.5, 9.0, 9.0])
    fixed = {"forward": lambda self, obs: errors, "warm": torch.tensor(True)}
    model.lifelong = type("Fixed", (torch.nn.Module,), fixed)()
    looked = seen([False, False, False, True], [0.0] * 4)
    unknown = algorithm.intrinsic(model, looked, memory)
    assert unknown[NOVELTY].tolist() == [0.5, 0.5, 0.5, 0.0], "no error is unusual before any was seen"
    model.update(torch.tensor([1.0, 3.0]))  # mean 2, deviation 1
    found = algorithm.intrinsic(model, looked, memory)
    assert found[NOVELTY].tolist() == pytest.approx([0.5 * 1, 0.5 * 2.5, 0.5 * 3, 0.0], rel=1e-4)


def test_errors_of_mixed_precision_count_like_others():
    model, other = (build_model(draw(load("ngu-deepsea", SMALL))) for _ in range(2))
    model.update(torch.tensor([1.0, 3.0], dtype=torch.bfloat16))
    other.update(torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(model.error, other.error, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("separate", [False, True])
def test_every_row_learns_the_reward_and_the_discount_of_its_policy(separate):
    runtime = run(200, "algo.learning_starts=5000", f"algo.separate={separate}".lower())
    algorithm, steps = runtime.learner.algorithm, tree.to_torch(windows(runtime))
    arm = steps.carry["arm"]
    gamma = 1 - torch.exp(((3 - arm) * np.log(0.1) + arm * np.log(0.5)) / 3)
    beta = torch.tensor([0.0, *(0.3 / (1 + np.exp(-10 * (2 * i - 2) / 2)) for i in (1, 2)), 0.3])[arm]
    streams = {stream.name: algorithm.terms(steps, stream) for stream in algorithm.streams()}
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
    torch.testing.assert_close(algorithm.mixed(q, steps.carry), expected.float())


FAMILY = {"policies": 4, "novelty": 0.4, "discount": 0.95, "least_discount": 0.6}


def slow_family():
    """Weights of novelty and discounts of the four policies (2002.06038, appendix A)."""
    beta = [0.0, *(0.4 / (1 + math.exp(-10 * (2 * i - 2) / 2)) for i in (1, 2)), 0.4]
    gamma = [1 - math.exp(((3 - i) * math.log(1 - 0.95) + i * math.log(1 - 0.6)) / 3) for i in range(4)]
    return beta, gamma


def slow_curious_losses(model, steps, count):
    """RND's error at the next observation and the inverse model's cross-entropy, means over the last `count` steps."""
    errors, guesses = [], []
    for b in range(steps.rows):
        end = int(steps.valid[:, b].sum())
        for t in range(max(0, end - count), end):
            before, after = steps.obs[t, b : b + 1], steps.obs[t + 1, b : b + 1]
            mean, std = model.lifelong.moments[0].mean_and_std()
            seen = ((after - mean) / std).clamp(-2.0, 2.0)
            error = model.lifelong.predictor(seen)[0] - model.lifelong.random(seen)[0].detach()
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
    parts = {"lifelong": lifelong, "episodic": episodic, "curious_steps": 2, "separate": separate, "delta_q": False}
    config = NGUConfig(name="ngu", **{**SEQUENCES, **FAMILY, **parts, "retrace": 0.9, **settings})
    algorithm = NGU(config, float64_net("lstm", inputs=["action", "reward"]))
    model, target = build(algorithm, env_spec()), build_target(algorithm, env_spec())
    batch = make_batch(model, rewards=("extrinsic", NOVELTY, SCORE), arms=4)
    steps = batch.trajectory
    model.lifelong.update(0.3 * steps.obs[1:] + 1.0, steps.valid)  # statistics that normalization changes a lot with
    arm, (beta, gamma) = steps.carry["arm"].tolist(), slow_family()
    ones, mine, discount = [1.0] * steps.rows, [beta[i] for i in arm], [gamma[i] for i in arm]
    reward, novelty = steps.rewards["extrinsic"], steps.rewards[NOVELTY]
    if separate:
        streams = [SlowStream("extrinsic", reward, discount, ones), SlowStream(NOVELTY, novelty, discount, mine)]
    else:
        streams = [SlowStream("extrinsic", reward + torch.tensor(mine) * novelty, discount, ones)]
    seen = replace(steps, obs={"obs": steps.obs, "arm": steps.carry["arm"].expand(steps.length + 1, -1)})
    slow, _ = slow_losses(model.agent, target.agent, replace(batch, trajectory=seen), config, streams)
    named = slow if separate else {"q": slow["extrinsic"]}
    expected = {**named, **slow_curious_losses(model, steps, count=2)}
    assert_losses_match(algorithm, model, target, batch, expected, rtol=1e-5)  # the family is kept in float32


def test_what_is_unrolled_is_what_was_acted_on():
    """Weights have not moved, so arms, states, actions and both rewards are aligned if and only if these agree."""
    runtime = run(300, "algo.learning_starts=5000", META, "net.inputs=[action, reward]")
    steps, model = tree.to_torch(windows(runtime)), runtime.learner.model
    assert len(steps.carry["arm"].unique()) > 1
    arm = steps.carry["arm"].expand(steps.length + 1, -1)
    begun = replace(steps, obs={"obs": steps.obs, "arm": arm})
    q, _, _ = model.agent.unroll(begun.obs, begun.first, begun.action, begun.rewards, begun.carry)
    for t in range(steps.length):
        valid = steps.valid[t]
        torch.testing.assert_close(
            q["extrinsic"][t][valid], steps.extras["q"]["extrinsic"][t][valid], rtol=1e-4, atol=1e-5
        )


def test_every_part_is_moved_and_the_random_network_is_not():
    settings = ["env={id: toy/deep-sea, num: 3, args: {size: 5}}", "algo.separate=true"]
    learnt = run(300, "algo.learning_starts=20", "algo.updates_per_step=0.1", *settings)
    fresh = build_model(draw(load("ngu-deepsea", [*SMALL, *settings])))
    before = dict(fresh.named_parameters())
    moved = {
        ".".join(name.split(".")[:3])
        for name, new in learnt.learner.model.named_parameters()
        if not torch.equal(new, before[name])
    }
    assert {"agent.trunks.extrinsic", "agent.trunks.novelty", "agent.heads.novelty"} <= moved
    assert any(name.startswith("lifelong.predictor") for name in moved)
    assert any(name.startswith("embedding") for name in moved)
    assert not any(name.startswith("lifelong.random") for name in moved)


def test_a_family_of_agent57_that_is_too_small_is_refused():
    with pytest.raises(UserError, match=r"algo.family=agent57: .*at least 10 policies, not 4"):
        draw(load("ngu-deepsea", [*SMALL, "algo.family=agent57"]))


@pytest.mark.parametrize("separate", ["false", "true"])
def test_it_resumes_to_the_bit(differs_when_resumed, separate):
    settings = [*SMALL, META, f"algo.separate={separate}", "algo.learning_starts=50", "algo.updates_per_step=0.05"]
    assert differs_when_resumed("ngu-deepsea", settings, 600) == []
