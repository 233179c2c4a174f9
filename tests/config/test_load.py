"""Configuration: presets, overrides, and mistakes that are all named at once."""

import subprocess
import sys

import pytest
import yaml

from starling.config.load import from_dict, load, preset_names, to_dict, to_yaml
from starling.config.parts import Linear
from starling.errors import UserError


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_survives_being_saved(name):
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


def test_all_mistakes_are_reported_at_once_with_the_nearest_key():
    with pytest.raises(UserError) as caught:
        load("dqn-cartpole", ["algo.batchs=3", "seed=much", "algo.discount=2", "sede=1"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    text = str(caught.value)
    assert "'algo.batchs'; did you mean 'batch'" in text
    assert "'sede'; did you mean 'seed'" in text
    assert "seed: " in text
    assert "algo.discount: " in text


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
        ("ppo-cartpole", ["algo.clip.start=0.1", "algo.clip.steps=5"], "give either steps or fraction"),
    ],
)
def test_mistakes_get_one_clear_line(source, overrides, message):
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        load(source, overrides)
    assert message in str(caught.value)


def test_a_file_that_is_no_mapping_is_refused(tmp_path):
    file = tmp_path / "list.yaml"
    file.write_text("- 1\n")
    with pytest.raises(UserError, match="must hold keys"):
        load(str(file))
    file.write_text("a: [1\n")
    with pytest.raises(UserError, match="not valid YAML"):
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


def test_a_linear_ramp():
    by_steps = Linear(start=1.0, end=0.0, steps=10)
    assert [by_steps.at(n, 0.0) for n in (0, 5, 10, 99)] == [1.0, 0.5, 0.0, 0.0]
    by_share = Linear(start=0.0, end=1.0, fraction=0.5)
    assert [by_share.at(0, f) for f in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]


def test_configuration_is_checked_without_torch():
    code = "import sys; from starling.config.load import load; load('dqn-cartpole'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
