"""Loading configurations: presets, overrides, and errors that are all reported at once."""

import subprocess
import sys

import pytest
import yaml

from starling.config.load import from_dict, load, preset_names, to_dict, to_yaml
from starling.config.parts import Linear
from starling.config.quantities import Quantity
from starling.errors import UserError
from starling.types import Progress


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_round_trips_through_yaml(name):
    config = load(name)
    assert from_dict(yaml.safe_load(to_yaml(config))) == config
    assert from_dict(to_dict(config)) == config


def test_overrides_are_typed_and_nested():
    config = load(
        "dqn-cartpole", ["seed=3", "algo.prioritized.alpha=0.5", "stop.return=475", "net.torso.hidden=[8, 8]"]
    )
    assert config.seed == 3
    assert config.algo.prioritized.alpha == 0.5
    assert config.stop.return_ == 475
    assert config.net.torso.hidden == [8, 8]


def test_all_errors_are_reported_at_once_with_the_nearest_key():
    with pytest.raises(UserError) as caught:
        load("dqn-cartpole", ["algo.batchs=3", "seed=much", "algo.discount=2", "sede=1"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    text = str(caught.value)
    assert "'algo.batchs'; did you mean 'algo.batch'" in text
    assert "'sede'; did you mean 'seed'" in text
    assert "seed: must be an integer, at least 0, below 2,147,483,648, not 'much'" in text
    assert "algo.discount: must be below 1, not 2" in text


@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        ("ppo-cartpol", [], "unknown preset 'ppo-cartpol'; did you mean 'ppo-cartpole'"),
        ("nothing.yaml", [], "no such file: nothing.yaml"),
        ("ppo-cartpole", ["seed"], "'seed' is not an override"),
        ("ppo-cartpole", ["seed=[1"], "not valid YAML"),
        ("ppo-cartpole", ["algo.name=pppo"], "unknown algorithm 'pppo'; did you mean 'ppo'"),
        ("ppo-cartpole", ["algo.name=no.such:Thing"], "cannot import 'no.such:Thing'"),
        ("ppo-cartpole", ["algo=null"], "algo.name is missing"),
        ("ppo-cartpole", ["algo=dqn"], "algo: must be a section, not 'dqn'; did you mean algo.name=dqn?"),
        ("ppo-cartpole", ["env=Acrobot-v1"], "not 'Acrobot-v1'; did you mean env.id=Acrobot-v1?"),
        ("ppo-cartpole", ["env={num: 2}"], "env.id is missing: Gymnasium id"),
        ("ppo-cartpole", ["eval.metrics=[return]"], "'return' is a metric that every evaluation has; rename it"),
        ("ppo-cartpole", ["checkpoint=5"], "checkpoint: must be a section with the keys every, exact"),
        ("ppo-cartpole", ["lr=0.1"], "unknown key 'lr'; did you mean 'algo.optimizer.args.lr'?"),
        ("dqn-cartpole", ["batch=32"], "unknown key 'batch'; did you mean 'algo.batch'?"),
        ("dqn-cartpole", ["algo.gamma=0.9"], "unknown key 'algo.gamma'; did you mean 'algo.discount'?"),
        ("dqn-cartpole", ["every=1"], "did you mean 'checkpoint.every' or 'log.every'"),
        ("ppo-cartpole", ["stop.retrun=1"], "unknown key 'stop.retrun'; did you mean 'stop.return'?"),
        ("ppo-cartpole", ["stop.return=high"], "stop.return: must be a number or null, not 'high'"),
        ("ppo-cartpole", ["seed=1.5"], "seed: must be an integer, at least 0, below 2,147,483,648, not 1.5"),
        ("ppo-cartpole", ["net.shared=maybe"], "net.shared: must be true or false, not 'maybe'"),
        ("ppo-cartpole", ["net.init=orthogonl"], "'orthogonal', not 'orthogonl'; did you mean 'orthogonal'?"),
        ("ppo-cartpole", ["net.torso.hidden=[8, 0]"], "net.torso.hidden.1: must be above 0, not 0"),
        ("ppo-cartpole", ["algo.clip=wide"], "algo.clip: must be a number or a section with the keys start, end"),
        ("ppo-cartpole", ["stop.minutes=.inf"], "stop.minutes: must be a number, above 0, or null, not .inf"),
        (
            "ppo-cartpole",
            ["run=3"],
            """run: must be text that matches ^\\w[\\w.\\-]{0,127}$, or null, not 3; as text it is run='"3"'""",
        ),
        ("ppo-cartpole", ["run=a/b"], "run: 'a/b' cannot be used (name of the run's folder"),
        ("ppo-cartpole", ["curiosity=rnd"], "curiosity: must be a list of sections, not 'rnd'"),
        ("ppo-cartpole", ["env.args={1: 2}"], "env.args.1: the key must be text"),
        (
            "ppo-cartpole",
            ["env.wrappers.0.name=X"],
            "env.wrappers is a list of 0, counted from 0, and has no element '0'",
        ),
        ("ppo-cartpole", ["env.wrappers=[{nam: X, name: X}]"], "did you mean 'env.wrappers.0.name'?"),
        ("ppo-cartpole", ["seed.x=3"], "'seed.x=3': seed is 0 here, which has no keys"),
        ("ppo-minatar-breakout", ["algo.clip.end=0"], "algo.clip is 0.2 here, which has no keys; give algo.clip as a"),
        ("ppo-cartpole", ["algo..clip=1"], "'algo..clip=1' is not an override"),
        ("ppo-cartpole", ["env.args={a: 1, a: 2}"], "the key 'a' occurs twice"),
        ("ppo-cartpole", ["algo.clip.steps=5", "algo.clip.fraction=1"], "give either steps or fraction"),
    ],
)
def test_invalid_values_are_one_line_errors(source, overrides, message):
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        load(source, overrides)
    assert message in str(caught.value)


def test_file_that_is_not_a_mapping_is_rejected(tmp_path):
    file = tmp_path / "list.yaml"
    file.write_text("- 1\n")
    with pytest.raises(UserError, match="must hold keys"):
        load(str(file))
    file.write_text("a: [1\n")
    with pytest.raises(UserError, match="not valid YAML"):
        load(str(file))


def test_errors_in_overrides_and_in_the_algorithm_do_not_hide_others():
    with pytest.raises(UserError) as caught:
        load("dqn-cartpole", ["nothing", "algo.name=dqm", "sede=1", "env.num=0", "algo.no_such_key=1"])
    assert [line.partition(";")[0] for line in str(caught.value).splitlines()] == [
        "'nothing' is not an override",
        "unknown algorithm 'dqm'",
        "env.num: must be at least 1, not 0",
        "unknown key 'sede'",
    ]


@pytest.mark.parametrize("number", ["1e-3", "1E-3", "+1e-3", "1.e-3", ".1e-2", "0.001", "1_0e-4"])
def test_every_notation_of_a_number_works_in_files_and_overrides(number, tmp_path):
    assert load("dqn-cartpole", [f"algo.optimizer.args.lr={number}"]).algo.optimizer.args == {"lr": 0.001}
    file = tmp_path / "my.yaml"
    file.write_text(f"algo: {{name: dqn, optimizer: {{args: {{lr: {number}}}}}}}\nenv: {{id: CartPole-v1}}\n")
    assert load(str(file)).algo.optimizer.args == {"lr": 0.001}


@pytest.mark.parametrize("text", ["e3", "1e", "1e-3x", "v1e3", "2024-01-01", "."])
def test_text_that_only_looks_like_a_number_stays_text(text):
    assert load("ppo-cartpole", [f"env.args.x={text}"]).env.args == {"x": text}


def test_integer_may_be_written_with_an_exponent():
    assert load("dqn-cartpole", ["algo.capacity=1e5"]).algo.capacity == 100_000


@pytest.mark.parametrize("comments", [False, True])
@pytest.mark.parametrize(
    "value",
    ["1e-3", "1", "true", "null", "2024-01-01", "a # b", "a: b", "two\nlines", "", "'", "ü", [1e-7, {"a": None}]],
)
def test_saved_values_round_trip(value, comments, tmp_path):
    values = to_dict(load("ppo-cartpole"))
    values["env"]["args"] = {"x": value, "y": {"z": [value]}}
    config = from_dict(values)
    file = tmp_path / "saved.yaml"
    file.write_text(to_yaml(config, comments=comments), encoding="utf-8")
    assert load(str(file)) == config


def test_override_leaves_the_rest_of_its_section_unchanged(tmp_path):
    file = tmp_path / "short.yaml"
    file.write_text("algo: {name: dqn}\nenv: {id: CartPole-v1}\n")
    whole = load(str(file))
    config = load(str(file), ["algo.optimizer.args.lr=1", "algo.epsilon.end=0.5", "algo.prioritized.alpha=0.1"])
    assert config.algo.optimizer.args == {"lr": 1, "eps": 1.5e-4}
    assert config.algo.optimizer.clip_norm == whole.algo.optimizer.clip_norm == 10
    assert config.algo.epsilon == Linear(start=1.0, end=0.5, steps=1_000_000)
    assert config.algo.prioritized.alpha == 0.1
    other = load(str(file), ["algo.optimizer.args.lr=1", "algo.name=ppo"])
    assert other.algo.optimizer.schedule.name == "LinearLR"


def test_last_of_several_overrides_counts():
    assert load("ppo-cartpole", ["seed=1", "seed=2", "seed=1"]).seed == 1
    assert load("ppo-cartpole", ["algo.clip=0.3", "algo.clip={start: 1, end: 0, steps: 9}"]).algo.clip.steps == 9


def test_elements_of_a_list_can_be_overridden():
    wrappers = "env.wrappers=[{name: One}, {name: Two}]"
    config = load("ppo-cartpole", [wrappers, "env.wrappers.1.name=Three", "env.wrappers.0.args.n=4"])
    assert [(wrapper.name, wrapper.args) for wrapper in config.env.wrappers] == [("One", {"n": 4}), ("Three", {})]
    config = load("ppo-cartpole", ["net.torso.hidden.0=16"])
    assert config.net.torso.hidden == [16, 64]


def test_duplicate_key_is_rejected_but_yaml_merge_works(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("algo: {name: ppo}\nenv: {id: CartPole-v1}\nseed: 1\nseed: 2\n")
    with pytest.raises(UserError, match=r"my.yaml is not valid YAML: the key 'seed' occurs twice \(line 4\)"):
        load(str(file))
    file.write_text("algo: {name: ppo}\nenv: {id: CartPole-v1, args: {a: &a {x: 1, y: 1}, b: {<<: *a, x: 2}}}\n")
    assert load(str(file)).env.args["b"] == {"x": 2, "y": 1}


def test_file_that_is_not_text_is_rejected(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        load(str(file))


def test_every_key_is_described():
    def undescribed(model, path=""):
        for name, field in model.model_fields.items():
            if not field.description:
                yield f"{path}{name}"
            inner = [field.annotation, *getattr(field.annotation, "__args__", ())]
            for part in inner:
                if hasattr(part, "model_fields"):
                    yield from undescribed(part, f"{path}{name}.")

    for preset in preset_names():
        assert list(undescribed(type(load(preset)))) == []


def test_linear_ramp_values():
    by_steps = Linear(start=1.0, end=0.0, steps=10)
    assert [by_steps.at(Progress(n)) for n in (0, 5, 10, 99)] == [1.0, 0.5, 0.0, 0.0]
    by_updates = Linear(start=1.0, end=0.0, steps=Quantity(10, "updates"))
    assert [by_updates.at(Progress(1000, n)) for n in (0, 5, 10, 99)] == [1.0, 0.5, 0.0, 0.0]
    by_share = Linear(start=0.0, end=1.0, fraction=0.5)
    assert [by_share.at(Progress(fraction=f)) for f in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]


def test_checking_a_configuration_does_not_import_torch():
    code = "import sys; from starling.config.load import load; load('dqn-cartpole'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
