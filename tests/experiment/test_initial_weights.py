"""Runs that start with weights of another run, checkpoint, or file (`init_from`)."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import starling
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.initial_weights import InitialWeights, match_weights, read_weights
from starling.experiment.run_folder import checkpoint
from starling.launch.plan import RunPlan, build_model
from starling.launch.runtime import build_runtime

DQN = ["env.num=2", "net.torso.hidden=[16]", "stop.return=null", "algo.learning_starts=100", "algo.fragment=16"]
SHORT = [*DQN, "stop.env_steps=320", "checkpoint.every=160", "algo.optimizer.schedule=null"]
PPO = ["env.num=2", "net.torso={kind: mlp, hidden: [16], activation: relu}", "stop.return=null", "net.shared=true"]
TORSO = "trunks.shared.torso.dense.linears"
FIRST = f"{TORSO}.0.weight"
LIMITS = {"learner": 2**26}
ONE_LINE = r"^[^\n]*$"


class Lines:
    """A display that records messages."""

    def __init__(self):
        self.lines = []

    def tick(self, status): ...

    def row(self, row): ...

    def message(self, line):
        self.lines.append(line)

    def starting(self, start):
        (found,) = [line for line in self.lines if line.startswith(start)]
        return found


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A trained DQN, whose weights differ from those of its seed."""
    return starling.train("dqn-cartpole", [*SHORT, "run=source", "seed=7"], runs=tmp_path_factory.mktemp("runs")).folder


def saved_weights(run, which=checkpoint.NEWEST):
    _, state, _ = checkpoint.find(run / "checkpoints", which, ("learner",))
    return state["learner"]["model"]


def first_state(preset, *overrides):
    """State of the learner before the first update, as `starling.train` would start with it."""
    from starling.experiment.train import _take_weights

    config = load(preset, list(overrides))
    runtime = build_runtime(RunPlan.from_config(config))
    transfer = _take_weights(runtime, read_weights(config.init_from, LIMITS))
    state = runtime.learner.get_state()
    runtime.close()
    return transfer, state


def names_of(preset, *overrides):
    return build_model(RunPlan.from_config(load(preset, list(overrides)))).state_dict()


def test_weights_and_target_are_those_of_the_source_and_all_else_starts_fresh(source):
    transfer, state = first_state("dqn-cartpole", *DQN, f"init_from={source}")
    for name, value in saved_weights(source).items():
        assert torch.equal(state["model"][name], value), name
        assert torch.equal(state["target"][name], value), name
    assert (state["updates"], transfer.misfits, transfer.only_here, transfer.only_there) == (0, {}, {}, {})
    fresh = build_runtime(RunPlan.from_config(load("dqn-cartpole", DQN)))
    expected = fresh.learner.get_state()["optimizers"]
    fresh.close()
    assert str(state["optimizers"]) == str(expected)


def test_optimizers_learn_from_the_new_weights(source, tmp_path):
    """The optimizers hold flat copies of the parameters, which must not be those of the seed."""
    result = starling.train(
        "dqn-cartpole", [*SHORT, f"init_from={source}", "algo.optimizer.args.lr=1e-9"], runs=tmp_path
    )
    assert result.updates > 0
    for name, value in saved_weights(source).items():
        assert torch.allclose(saved_weights(result.folder)[name], value, atol=1e-5), name


@pytest.mark.parametrize("runtime", [["runtime=processes", "actors=2"], pytest.param(["learners=2"])])
def test_workers_start_with_the_weights(source, tmp_path, runtime):
    settings = [*SHORT, *runtime, f"init_from={source}", "algo.optimizer.args.lr=1e-9"]
    result = starling.train("dqn-cartpole", settings, runs=tmp_path)
    assert result.updates > 0
    for name, value in saved_weights(source).items():
        assert torch.allclose(saved_weights(result.folder)[name], value, atol=1e-5), name


def test_what_was_taken_is_shown_and_recorded_and_a_resumed_run_does_not_need_the_source(source, tmp_path):
    moved, shown = tmp_path / "moved", Lines()
    shutil.copytree(source, moved)
    result = starling.train("dqn-cartpole", [*SHORT, f"init_from={moved}", "run=mine"], runs=tmp_path, display=shown)
    head = shown.starting("weights: ")
    assert head == f"weights: 4 of 4 tensors from {moved} (step-000000000320); optimizers and counters start fresh"
    assert f"{FIRST} [16, 4]" in shown.starting("taken: ")
    record = json.loads((result.folder / "init_from.json").read_text())
    assert record["path"] == str(moved)
    assert (record["source"], set(record["taken"])) == (f"{moved} (step-000000000320)", set(saved_weights(source)))
    assert head in (result.folder / "log.txt").read_text()
    assert load(str(result.folder / "config.yaml"), derive=False).init_from == str(moved)
    shutil.rmtree(moved)
    shutil.rmtree(result.folder / "checkpoints" / "step-000000000320")
    assert starling.resume(result.folder).env_steps == 320


def test_same_seed_and_source_give_the_same_run(source, tmp_path):
    runs = [starling.train("dqn-cartpole", [*SHORT, f"init_from={source}"], runs=tmp_path / str(i)) for i in range(2)]
    one, other = (saved_weights(run.folder) for run in runs)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("form", ["checkpoints/best", "checkpoints/newest", "checkpoints/step-000000000160", "learner"])
def test_a_checkpoint_or_its_file_can_be_named(source, form):
    path = source / "checkpoints" / "step-000000000160" / "learner.safetensors" if form == "learner" else source / form
    which = {"learner": "160"}.get(form, form.removeprefix("checkpoints/"))
    _, state = first_state("dqn-cartpole", *DQN, f"init_from={path}")
    for name, value in saved_weights(source, which).items():
        assert torch.equal(state["model"][name], value), name


def test_a_file_of_another_program_can_be_named(source, tmp_path):
    weights = {name: value.double() for name, value in saved_weights(source).items()}
    save_file({**weights, "optimizer.step": torch.zeros(3)}, tmp_path / "mine.safetensors")
    transfer, state = first_state("dqn-cartpole", *DQN, f"init_from={tmp_path / 'mine.safetensors'}")
    assert transfer.only_there == {"optimizer.step": [3]}
    for name, value in weights.items():
        assert torch.equal(state["model"][name], value.float()), name


def test_another_algorithm_takes_the_torso(source):
    transfer, state = first_state("ppo-cartpole", *PPO, f"init_from={source}")
    assert set(transfer.taken) == {FIRST, f"{TORSO}.0.bias"}
    assert torch.equal(
        state["model"][FIRST],
        saved_weights(source)[FIRST],
    )
    assert {name.split(".")[1] for name in transfer.only_here} == {"policy", "extrinsic"}
    assert {name.split(".")[1] for name in transfer.only_there} == {"extrinsic"}


def test_separate_trunks_start_from_the_shared_one_and_back(source):
    transfer, state = first_state("ppo-cartpole", *PPO, "net.shared=false", f"init_from={source}")
    theirs = saved_weights(source)[FIRST]
    for trunk in ("policy", "extrinsic"):
        assert transfer.taken[FIRST.replace("shared", trunk)] == FIRST
        assert torch.equal(state["model"][FIRST.replace("shared", trunk)], theirs)
    separate = names_of("ppo-cartpole", *PPO, "net.shared=false")
    transfer = match_weights(InitialWeights("x", separate), names_of("dqn-cartpole", *DQN))
    assert transfer.taken[FIRST] == FIRST.replace("shared", "policy")


@pytest.mark.parametrize(
    ("preset", "settings", "prefix"),
    [
        ("dqn-cartpole", [*DQN, "curiosity=[{kind: rnd}]"], "agent."),
        ("sac", ["env.id=CartPole-v1", "net.torso={kind: mlp, hidden: [16], activation: relu}"], "actor."),
    ],
)
def test_networks_inside_larger_models_take_the_torso(source, preset, settings, prefix):
    transfer = match_weights(InitialWeights("x", saved_weights(source)), names_of(preset, *settings))
    inner = {name for name in transfer.taken if name.startswith(prefix)}
    assert {name.partition("linears.")[2] for name in inner} >= {"0.weight", "0.bias"}


def test_another_env_takes_the_layers_that_fit():
    """CartPole's observations have 4 numbers, Acrobot's 6."""
    there = names_of("dqn-cartpole", *DQN, "net.torso.hidden=[16, 16]")
    here = names_of("dqn-cartpole", *DQN, "net.torso.hidden=[16, 16]", "env.id=Acrobot-v1")
    transfer = match_weights(InitialWeights("x", there), here)
    assert set(transfer.taken) == {
        "trunks.shared.torso.dense.linears.1.weight",
        "trunks.shared.torso.dense.linears.1.bias",
    }
    assert transfer.misfits[FIRST] == ([16, 4], [16, 6])
    assert transfer.with_misfits[f"{TORSO}.0.bias"] == [16]


def test_another_env_of_the_same_shapes_takes_everything():
    there, here = (names_of("dqn-minatar-breakout", f"env.id=MinAtar/{game}") for game in ("Breakout-v0", "Asterix-v0"))
    shapes = {name: value.shape for name, value in here.items()}
    same = shapes == {name: value.shape for name, value in there.items()}
    transfer = match_weights(InitialWeights("x", there), here)
    assert (len(transfer.taken) == len(here)) is same


def test_a_layer_is_taken_as_a_whole_or_not_at_all():
    theirs = {"a.weight": torch.ones(2, 3), "a.bias": torch.ones(2), "b.weight": torch.ones(4)}
    mine = {"a.weight": torch.zeros(2, 5), "a.bias": torch.zeros(2), "b.weight": torch.zeros(4), "c.x": torch.zeros(1)}
    transfer = match_weights(InitialWeights("there", theirs), mine)
    assert transfer.taken == {"b.weight": "b.weight"}
    assert transfer.misfits == {"a.weight": ([2, 3], [2, 5])}
    assert (transfer.with_misfits, transfer.only_here, transfer.only_there) == ({"a.bias": [2]}, {"c.x": [1]}, {})
    assert transfer.lines("there", mine) == [
        "weights: 1 of 4 tensors from there; optimizers and counters start fresh",
        "taken: b.weight [4]",
        "not taken, of another shape: a.weight [2, 3] there, [2, 5] here",
        "not taken, in a layer with these: a.bias [2]",
        "not in the source, initialized from the seed: c.x [1]",
    ]


def test_integers_are_not_taken_as_floats():
    with pytest.raises(UserError, match="no weights of there fit"):
        match_weights(InitialWeights("there", {"a.n": torch.ones(2).long()}), {"a.n": torch.zeros(2)})


def test_a_shape_with_as_many_values_is_another_shape():
    with pytest.raises(UserError, match=r"a\.weight \[2, 3\] there, \[3, 2\] here"):
        match_weights(InitialWeights("there", {"a.weight": torch.ones(2, 3)}), {"a.weight": torch.zeros(3, 2)})


def test_long_lists_are_cut():
    many = {f"layer{i}.weight": torch.zeros(1) for i in range(40)}
    lines = match_weights(InitialWeights("there", many), many).lines("there", many)
    assert lines[1].endswith(" and 28 more (in init_from.json)")


def test_weights_of_another_shape_are_refused_in_one_line_with_both_shapes(source, in_empty):
    with pytest.raises(UserError, match=ONE_LINE) as caught:
        starling.train("dqn-cartpole", [*DQN, "net.torso.hidden=[24]", "algo.dueling=true", f"init_from={source}"])
    message = str(caught.value)
    assert message.startswith(f"init_from: no weights of {source} (step-000000000320) fit this network: ")
    assert f"{FIRST} [16, 4] there, [24, 4] here" in message
    assert message.endswith("give it the same net, and an env with the same shapes")
    assert list(in_empty.iterdir()) == []


@pytest.fixture
def in_empty(tmp_path, monkeypatch):
    """An empty current folder, in which a refused run must leave nothing."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _pickle(folder, source):
    torch.save(saved_weights(source), folder / "weights.pt")
    return "weights.pt", r"cannot be used \(not a safetensors file: .*pickles such as .pt are never loaded"


def _nan(folder, source):
    weights = {name: value.clone() for name, value in saved_weights(source).items()}
    weights[FIRST][0, 0] = np.nan
    save_file(weights, folder / "nan.safetensors")
    return (
        "nan.safetensors",
        f"{FIRST} of nan.safetensors has values that are not finite",
    )


def _link(folder, source):
    (folder / "link.safetensors").symlink_to(source / "checkpoints" / "step-000000000320" / "learner.safetensors")
    return "link.safetensors", "cannot read init_from=link.safetensors: Too many levels of symbolic links"


def _altered(folder, source):
    shutil.copytree(source / "checkpoints" / "step-000000000320", folder / "altered")
    with open(folder / "altered" / "learner.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    return "altered", r"learner.safetensors was altered \(its checksum differs\)"


@pytest.mark.parametrize(
    "make",
    [
        lambda folder, source: ("nowhere", "cannot read init_from=nowhere: No such file or directory"),
        lambda folder, source: ("gone/checkpoints/best", "no such run: gone"),
        lambda folder, source: (f"{source}/checkpoints/7", "no checkpoint '7' in .* newest, best, 160, 320"),
        lambda folder, source: ("x" * 4000, "cannot read init_from=x.*: File name too long"),
        lambda folder, source: (".", "is not a run: it has no config.yaml"),
        _pickle,
        _nan,
        _link,
        _altered,
    ],
)
def test_unusable_sources_are_refused_in_one_line(source, in_empty, make):
    init_from, message = make(in_empty, source)
    before = sorted(in_empty.iterdir())
    with pytest.raises(UserError, match=ONE_LINE) as caught:
        starling.train("dqn-cartpole", [*SHORT, f"init_from={init_from}"])
    assert re.search(message, str(caught.value)), str(caught.value)
    assert sorted(in_empty.iterdir()) == before


def test_damaged_newest_checkpoint_is_skipped_and_named(source, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    (broken / "checkpoints" / "step-000000000320" / "learner.safetensors").unlink()
    initial = read_weights(str(broken), LIMITS)
    assert initial.source == f"{broken} (step-000000000160)"
    assert initial.problems == ("step-000000000320: learner.safetensors is missing",)


def test_impossible_statistics_are_refused(in_empty, tmp_path):
    settings = ["algo.rollout=32", "net.torso.hidden=[4]", "curiosity=[{kind: rnd}]"]
    weights = build_model(RunPlan.from_config(load("ppo-cartpole", settings))).state_dict()
    (count,) = [value for name, value in weights.items() if name.endswith("moments.0.count")]
    count.fill_(-5)
    save_file(weights, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"^init_from: .*w.safetensors cannot be used: .*fewer than no values"):
        starling.train("ppo-cartpole", [*settings, f"init_from={tmp_path / 'w.safetensors'}"])


def test_branches_keep_the_weights_of_their_checkpoint(source, tmp_path):
    from starling.experiment.train import branch

    config = load(str(source / "config.yaml"), [f"init_from={source}", "run=child"])
    with pytest.raises(
        UserError, match="a branch cannot change init_from: start a new run with starling train instead"
    ):
        branch(source, config, tmp_path, Lines())
