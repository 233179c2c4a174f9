"""Runs whose networks are configured one by one: who learns from what, metrics, and resuming to the bit."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.agents import AGENTS, EPISODIC, RND, SMALL
from support.inline_runs import build
from support.metric_rows import problems

import starling
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.branch import check_branch
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import TIMING, read_rows
from starling.launch.plan import RunPlan
from starling.learner.learner import LearnResult
from starling.tools.verify import compare

SHORT = ["stop.env_steps=1200", "log.every=300", "checkpoint.replay=false"]
SCHEDULE = "schedule: {name: LinearLR, args: {start_factor: 1.0, end_factor: 0.0, total_iters: run}}"
ADAM = f"{{name: Adam, args: {{lr: 0.01}}, clip_norm: 0.3, {SCHEDULE}}}"
DIFFERENT = (
    "nets={policy: {torso: {hidden: [12]}, optimizer: {name: RMSprop, args: {lr: 0.004}}},"
    f" value: {{torso: {{hidden: [6, 6]}}, optimizer: {ADAM}}}}}"
)


def rows_of(folder, dropped=()):
    rows = read_rows(RunFolder(folder).metrics_file)
    return [{k: v for k, v in row.items() if not k.startswith((TIMING, *dropped))} for row in rows]


def train(agent, runs, *overrides):
    preset, settings = AGENTS[agent]
    return starling.train(preset, [*SMALL, *settings, *SHORT, *overrides], runs=runs).folder


@pytest.mark.parametrize("agent", ["ppo", "ppo asynchronous", "impala", "impala clear", "impact"])
@pytest.mark.parametrize(
    ("nets", "shared"), [("{policy: {}, value: {}}", "false"), ("{policy: {}, value: {share: policy}}", "true")]
)
def test_equal_networks_and_optimizers_are_the_short_form_to_the_bit(agent, nets, shared, tmp_path):
    """Two optimizers with the same settings take the steps of one; only norms and clipping are separate.

    Not with Adam, whose kernel rounds the last elements of a buffer differently.
    """
    settings = ["algo.optimizer={name: RMSprop, args: {lr: 0.003}}"]
    short = train(agent, tmp_path / "short", *settings, f"net.shared={shared}")
    named = train(agent, tmp_path / "named", *settings, f"nets={nets}")
    assert rows_of(short, dropped=["learner/"]) == rows_of(named, dropped=["learner/"])
    assert rows_of(named)[-1]["updates"] > 0
    rates = {key for key in rows_of(named)[-1] if key.endswith("learning_rate")}
    names = ["policy", "value"] if shared == "false" else ["policy"]
    assert rates == {f"learner/{name}/learning_rate" for name in names}


NAMED = {
    "ppo": [DIFFERENT],
    "ppo lstm": ["nets={policy: {inputs: [action, reward]}, value: {core: {kind: none}}}"],
    "ppo curious": ["nets={policy: {}, value: {torso: {hidden: [6]}}, value_rnd: {torso: {hidden: [5]}}}"],
    "impala": [DIFFERENT],
    "impala elite lstm": ["nets={policy: {torso: {hidden: [9]}}, value: {core: {kind: none}}}"],
    "impact": [DIFFERENT],
    "dqn": ["nets={q: {torso: {hidden: [9]}, optimizer: {args: {lr: 0.002}}}}"],
    "dqn curious": ["nets={q: {}, q_episodic: {torso: {hidden: [7]}}}"],
    "pqn": ["nets={q: {head: {hidden: [9]}}}"],
    "r2d2": [f"curiosity=[{RND}]", "nets={q: {}, q_rnd: {core: {kind: none}, torso: {hidden: [7]}}}"],
    "ngu": ["algo.separate_networks=true", "nets={q: {}, q_novelty: {share: q, optimizer: {args: {lr: 0.001}}}}"],
    "sac": ["nets={policy: {torso: {hidden: [9]}, optimizer: {name: SGD}}, critics: {torso: {hidden: [20, 7]}}}"],
}


@pytest.mark.parametrize("agent", NAMED)
def test_every_algorithm_learns_with_networks_of_its_own_kind_for_each_name(agent):
    preset, settings = AGENTS[agent]
    runtime = build(preset, *SMALL, *settings, *NAMED[agent], "stop.env_steps=1500")
    learner = runtime.learner
    specs = learner.algorithm.learning().optimizers
    trained = [parameter for spec in specs.values() for parameter in spec.parameters(learner.model)]
    assert len({id(p) for p in trained}) == len(trained)
    wanted = {id(p) for p in learner.model.parameters() if p.requires_grad}
    assert wanted <= {id(p) for p in trained}
    before = {name: optimizer.flat.clone() for name, optimizer in learner._optimizers.items()}
    for _ in runtime.run():
        if runtime.updates >= 3:
            break
    assert {name for name, flat in before.items() if learner._optimizers[name].flat.equal(flat)} == set()
    metrics = runtime.drain_metrics()
    assert {f"learner/{name}/{key}" for name in specs for key in ("gradient_norm", "learning_rate")} <= metrics.keys()
    assert not problems(metrics)
    runtime.close()


def test_shared_torso_follows_both_losses_and_a_head_of_its_own_optimizer_only_its_own():
    """The gradients are those of the whole loss with one optimizer."""
    settings = ["env.id=toy/identity", "env.num=4", "net.torso.hidden=[8]", "net.init=default", "algo.entropy_coef=0.1"]

    def gradients(*nets):
        runtime = build("ppo-cartpole", *settings, *nets)
        learner = runtime.learner
        sample = first_sample(runtime)
        with torch.no_grad():
            batch = learner._prepare(learner._to_batch(sample, learner.progress(0))[0], None)
        loss = learner.algorithm.loss(learner.model, None, batch)
        found = {}
        names = {id(parameter): name for name, parameter in learner.model.named_parameters()}
        for name, spec in learner.algorithm.learning().optimizers.items():
            mine = list(spec.parameters(learner.model))
            grads = torch.autograd.grad(loss.losses[name], mine, retain_graph=True)
            found |= {names[id(p)].replace("shared", "policy"): g for p, g in zip(mine, grads, strict=True)}
        runtime.close()
        return found

    one = gradients("net.shared=true")
    two = gradients("nets={policy: {}, value: {share: policy, optimizer: {args: {lr: 0.1}}}}")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(gradient.any() for name, gradient in one.items() if "policy.logits" not in name)


def first_sample(runtime):
    """The first batch of a run, from which the learner does not learn."""
    taken, step = [], runtime.learner.step

    def take(sample, env_steps):
        if sample is None:
            return step(sample, env_steps)
        taken.append(sample)
        return LearnResult(sample.keys, None)

    runtime.learner.step = take
    for _ in runtime.run():
        if taken:
            break
    return taken[0]


def test_learning_rates_follow_their_own_schedules(tmp_path):
    rows = rows_of(train("ppo", tmp_path, DIFFERENT))
    assert {row["learner/policy/learning_rate"] for row in rows} == {0.004}
    rates = [row["learner/value/learning_rate"] for row in rows]
    assert 0.01 >= rates[0] > rates[-1] >= 0.0
    assert all(a >= b for a, b in pairwise(rates))
    norms = [(row["learner/policy/gradient_norm"], row["learner/value/gradient_norm"]) for row in rows]
    assert all(policy != value for policy, value in norms)


def test_run_with_different_networks_resumes_to_the_bit(tmp_path):
    """Another size, optimizer, and schedule for policy and value."""
    exact = ["checkpoint.every=800", "checkpoint.exact=true", "checkpoint.replay=true", "checkpoint.keep=9"]
    exact += ["stop.env_steps=3200"]
    whole = train("ppo", tmp_path, DIFFERENT, *exact)
    cut = shutil.copytree(whole, tmp_path / "cut")
    _, *later = sorted(RunFolder(cut).checkpoints.glob("step-*"))
    assert len(later) > 1
    for folder in later:
        shutil.rmtree(folder)
    assert starling.resume(cut).env_steps >= 3200
    assert compare(RunFolder(whole), RunFolder(cut)) == []
    assert rows_of(whole) == rows_of(cut)
    assert len(rows_of(whole)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("topology", [["runtime=processes", "actors=2"], ["learners=2", "actors=2"]], ids=" ".join)
@pytest.mark.parametrize("agent", ["ppo", "dqn curious", "r2d2"])
def test_networks_configured_one_by_one_work_over_processes(agent, topology, tmp_path):
    rows = rows_of(train(agent, tmp_path, *NAMED[agent], *topology))
    assert rows[-1]["updates"] > 0
    assert all(not problems(row) for row in rows)


def test_branch_may_change_optimizers_but_not_networks():
    def plan(*overrides):
        return RunPlan.from_config(load("ppo-cartpole", ["nets={policy: {}, value: {share: policy}}", *overrides]))

    changes = check_branch(plan(), plan("nets.policy.optimizer.args.lr=0.1")).changes
    assert list(changes) == ["nets.policy.optimizer"]
    with pytest.raises(UserError, match=r"a branch cannot change nets\.policy\.torso: start a new run"):
        check_branch(plan(), plan("nets.policy.torso.hidden=[3]"))
    with pytest.raises(UserError, match="a branch cannot change which networks have an optimizer of their own"):
        check_branch(plan(), plan("nets.value.optimizer.args.lr=0.1"))


def test_environments_reward_has_a_weight():
    preset, settings = AGENTS["dqn curious"]
    config = load(preset, [*settings, f"curiosity=[{EPISODIC}]", "env.reward_weight=0.25"])
    weights = {stream.name: stream.weight for stream in RunPlan.from_config(config).streams}
    assert weights == {"extrinsic": 0.25, "episodic": 0.05}


def test_sac_takes_layers_and_optimizers_from_nets():
    preset, settings = AGENTS["sac"]
    runtime = build(preset, *SMALL, *settings, *NAMED["sac"])
    model, specs = runtime.learner.model, runtime.learner.algorithm.learning().optimizers
    assert (specs["actor"].config.name, specs["critic"].config.name) == ("SGD", "Adam")
    assert specs["critic"].config.args["lr"] == 0.003  # that of algo.critic_optimizer
    assert [linear.out_features for linear in model.actor.trunks["shared"].torso.dense.linears] == [9]
    assert [layer.weight.shape[-1] for layer in model.critics.ensemble.hidden] == [20, 7]
    runtime.close()


def test_algorithm_of_ones_own_names_its_networks(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "own_algorithm.yaml"
    nets = "nets={policy: {}, value: {torso: {hidden: [5]}, optimizer: {args: {lr: 0.02}}}}"
    folder = starling.train(str(example), [nets, "stop.env_steps=1100", "log.every=500"], runs=tmp_path).folder
    last = [row for row in rows_of(folder) if "learner/policy/gradient_norm" in row][-1]
    assert (last["learner/policy/learning_rate"], last["learner/value/learning_rate"]) == (0.005, 0.02)
    assert last["learner/policy/gradient_norm"] != last["learner/value/gradient_norm"]
