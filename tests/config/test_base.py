"""Presets and files that derive from others with the key `base`."""

import pytest
import yaml

from starling.config.algorithms import config_class
from starling.config.load import load, preset_names, preset_text, to_dict, to_yaml
from starling.config.parts import Linear, OptimizerConfig
from starling.errors import UserError
from starling.experiment.run_folder.folder import RunFolder


@pytest.fixture
def write(tmp_path):
    """`write(name, text)`: the path of a new file, as text."""

    def file(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return file


def preset_with(base, *overrides):
    """A preset's configuration with overrides, as plain data."""
    return to_dict(load(base, overrides))


def test_keys_of_a_file_override_those_of_its_base(write):
    mine = write("mine.yaml", "base: dqn-cartpole\nseed: 3\nalgo: {batch: 7, optimizer: {args: {lr: 0.5}}}\n")
    expected = preset_with("dqn-cartpole", "seed=3", "algo.batch=7", "algo.optimizer.args.lr=0.5")
    assert to_dict(load(mine)) == expected
    assert "base" not in yaml.safe_load(to_yaml(load(mine)))
    assert load(mine, ["algo.batch=8"]).algo.batch == 8


def test_sections_are_merged_with_the_defaults_of_the_base(write):
    base = write("base.yaml", "algo: {name: dqn}\nenv: {id: CartPole-v1}\n")
    mine = write("mine.yaml", "base: base.yaml\nalgo: {optimizer: {args: {lr: 0.5}}, epsilon: {end: 0.2}}\n")
    assert load(mine).algo.optimizer == OptimizerConfig(name="Adam", args={"lr": 0.5, "eps": 1.5e-4}, clip_norm=10.0)
    assert load(mine).algo.epsilon == Linear(start=1.0, end=0.2, steps=1_000_000)
    assert load(base).algo.optimizer.args == {"lr": 6.25e-5, "eps": 1.5e-4}  # the default itself is unchanged
    other = write("other.yaml", "base: base.yaml\nalgo: {optimizer: {clip_norm: 1}}\n")
    assert load(other).algo.optimizer.args == {"lr": 6.25e-5, "eps": 1.5e-4}


def test_lists_replace_those_of_the_base(write):
    write(
        "base.yaml", "base: ppo-cartpole\nnet: {torso: {hidden: [1, 2, 3]}}\nenv: {wrappers: [{name: A}, {name: B}]}\n"
    )
    mine = load(write("mine.yaml", "base: base.yaml\nnet: {torso: {hidden: [4]}}\nenv: {wrappers: [{name: C}]}\n"))
    assert mine.net.torso.hidden == [4]
    assert [wrapper.name for wrapper in mine.env.wrappers] == ["C"]


def test_base_paths_are_relative_to_their_file(write, monkeypatch, tmp_path):
    write("common/base.yaml", "base: ppo-cartpole\nseed: 1\n")
    write("common/more/middle.yaml", "base: ../base.yaml\nlearners: 2\n")
    top = write("top.yaml", "base: common/more/middle.yaml\nlog: {every: 5}\n")
    assert to_dict(load(top)) == preset_with("ppo-cartpole", "seed=1", "learners=2", "log.every=5")
    monkeypatch.chdir(tmp_path / "common")
    assert load("../top.yaml") == load(top)
    absolute = write("absolute.yaml", f"base: {top}\n")
    assert load(absolute) == load(top)


OTHER_KINDS = {
    "an algorithm that has nothing in common": (
        "dqn-cartpole",
        "algo: {rollout: 16, name: ppo}",
        lambda algo, net: (algo.rollout, algo.optimizer) == (16, load_default("ppo").optimizer),
    ),
    "an algorithm that derives from it": (
        "dqn-cartpole",
        "algo: {name: apex}",
        lambda algo, net: (algo.batch, algo.ladder) == (load("dqn-cartpole").algo.batch, 7.0),
    ),
    "the algorithm that it derives from": (
        "apex-atari",
        "algo: {name: dqn}",
        lambda algo, net: (algo.batch, algo.codec, hasattr(algo, "ladder")) == (512, "zstd", False),
    ),
    "an algorithm with a common ancestor": (
        "dqn-atari",
        "algo: {name: sac}",
        lambda algo, net: (algo.codec, algo.capacity, algo.batch) == ("zstd", 1_000_000, 256),
    ),
    "an optimizer": (
        "ppo-atari",
        "algo: {optimizer: {args: {momentum: 0.9}, name: SGD}}",
        lambda algo, net: (
            algo.optimizer.args == {"lr": 2.5e-4, "momentum": 0.9}
            and algo.optimizer.clip_norm == 0.5
            and algo.optimizer.schedule.name == "LinearLR"
        ),
    ),
    "an optimizer of the default's": (
        "apex-atari",
        "algo: {optimizer: {name: Adam}}",
        lambda algo, net: algo.optimizer.args == {"lr": 6.25e-5},
    ),
    "a schedule": (
        "ppo-atari",
        "algo: {optimizer: {schedule: {name: StepLR, args: {step_size: 5}}}}",
        lambda algo, net: algo.optimizer.schedule.args == {"step_size": 5},
    ),
    "a torso": (
        "ngu-montezuma",
        "algo: {lifelong: {torso: {kind: nature}}}",
        lambda algo, net: (
            (algo.lifelong.torso.hidden, algo.lifelong.torso.channels) == (None, [16, 32, 32])
            and algo.episodic.torso.kind == "cnn"
        ),
    ),
    "another length of a ramp": (
        "dqn-atari",
        "algo: {epsilon: {end: 0.1, fraction: 0.5}}",
        lambda algo, net: algo.epsilon == Linear(start=1.0, end=0.1, fraction=0.5),
    ),
    "a constant for a ramp": ("dqn-atari", "algo: {epsilon: 0.1}", lambda algo, net: algo.epsilon.start == 0.1),
    "a ramp for a constant": (
        "ppo-minatar-breakout",
        "algo: {clip: {start: 1, end: 0, steps: 9}}",
        lambda algo, net: algo.clip == Linear(start=1, end=0, steps=9),
    ),
    "nothing for a section, and a section for nothing": (
        "apex-atari",
        "algo: {prioritized: null, optimizer: {schedule: {name: StepLR, args: {step_size: 5}}}}",
        lambda algo, net: (algo.prioritized, algo.optimizer.schedule.name) == (None, "StepLR"),
    ),
}


def load_default(name):
    return config_class(name)(name=name)


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_settings_of_another_kind_do_not_leak(kind, write):
    base, text, holds = OTHER_KINDS[kind]
    config = load(write("mine.yaml", f"base: {base}\n{text}\n"))
    assert holds(config.algo, config.net)


def test_settings_of_torso_auto_are_kept_for_any_kind(write):
    write("base.yaml", "algo: {name: ppo}\nenv: {id: CartPole-v1}\nnet: {torso: {hidden: [7]}}\n")
    assert load(write("mine.yaml", "base: base.yaml\nnet: {torso: {kind: mlp}}\n")).net.torso.hidden == [7]


@pytest.mark.parametrize(
    ("preset", "overrides", "key", "value"),
    [
        ("ppo-atari", ["algo.optimizer.name=SGD"], "args", {"lr": 2.5e-4}),
        ("ppo-atari", ["algo.optimizer.args.lr=1", "algo.optimizer.name=SGD"], "args", {"lr": 1}),
        ("ppo-atari", ["algo.optimizer.args={momentum: 0.5}", "algo.optimizer.name=SGD"], "args", {"momentum": 0.5}),
        ("ppo-atari", ["algo.optimizer.name=Adam"], "args", {"lr": 2.5e-4, "eps": 1e-5}),
        (
            "ppo-atari",
            ["algo.optimizer.args.momentum=0.5", "algo.optimizer.name=SGD"],
            "args",
            {"lr": 2.5e-4, "momentum": 0.5},
        ),
        ("dqn-cartpole", ["algo.optimizer.args.lr=1", "algo.name=ppo"], "args", {"lr": 1, "eps": 1e-5}),
        ("dqn-cartpole", ["algo.optimizer.args.lr=1", "algo.name=ppo"], "clip_norm", 0.5),
    ],
)
def test_overrides_drop_settings_of_another_kind(preset, overrides, key, value):
    assert getattr(load(preset, overrides).algo.optimizer, key) == value


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a.yaml": "base: ppo-atary\n"},
            "{a.yaml}: base names an unknown preset 'ppo-atary'; did you mean 'ppo-atari'",
        ),
        ({"a.yaml": "base: b.yaml\n"}, "{a.yaml}: base names a file that is not there: {b.yaml}"),
        ({"a.yaml": "base: b.yaml\n", "b.yaml": "base: nothing\n"}, "{b.yaml}: base names an unknown preset 'nothing'"),
        ({"a.yaml": "base: a.yaml\n"}, "{a.yaml}: base={a.yaml} is circular: {a.yaml} -> {a.yaml}"),
        (
            {"a.yaml": "base: b.yaml\n", "b.yaml": "base: ./a.yaml\n"},
            "{b.yaml}: base={a.yaml} is circular: {a.yaml} -> {b.yaml} -> {a.yaml}",
        ),
        ({"a.yaml": "base: [ppo-atari]\n"}, "{a.yaml}: base must be a preset's name or a YAML file, not [ppo-atari]"),
        ({"a.yaml": "base: null\n"}, "{a.yaml}: base must be a preset's name or a YAML file, not null"),
        ({"a.yaml": "base: b.yaml\n", "b.yaml": "- 1\n"}, "{b.yaml} must hold keys and values at its top level"),
        ({"a.yaml": "base: b.yaml\n", "b.yaml": "a: [1\n"}, "{b.yaml} is not valid YAML"),
        ({"a.yaml": "base: b.yaml\n", "b.yaml": "base: ppo-atari\nsede: 1\n"}, "'seed'? (in {b.yaml})"),
        ({"a.yaml": "base: b.yaml\nseed: 1\n", "b.yaml": "base: ppo-atari\nenv: {num: 0}\n"}, "not 0 (in {b.yaml})"),
        (
            {"a.yaml": "base: b.yaml\n", "b.yaml": "base: ppo-atari\nalgo: {name: pppo}\n"},
            "own as package.module:Name) (in {b.yaml})",
        ),
        (
            {"a.yaml": "base: dqn-atari\nalgo: {epsilon: {steps: 5, fraction: 0.5}}\n"},
            "algo.epsilon: give either steps or fraction",
        ),
    ],
)
def test_errors_are_one_line_and_name_the_file(files, message, write, tmp_path):
    for name, text in files.items():
        write(name, text)
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        load(str(tmp_path / "a.yaml"))
    for name in ("a.yaml", "b.yaml"):
        message = message.replace(f"{{{name}}}", str(tmp_path / name))
    assert message in str(caught.value)


def test_errors_in_the_loaded_file_and_in_overrides_name_no_file(write):
    mine = write("mine.yaml", "base: ppo-atari\nsede: 1\n")
    for source, overrides in ((mine, []), ("ppo-pong", ["sede=1"]), ("ppo-pong", ["env.num=0"])):
        with pytest.raises(UserError, match=r"^[^(]*$"):
            load(source, overrides)


def test_base_cannot_be_an_override():
    with pytest.raises(UserError, match=r"^'base=ppo-atari': base belongs in a file; give another preset"):
        load("ppo-pong", ["base=ppo-atari"])


def test_saved_configuration_of_a_run_must_not_have_a_base(write, tmp_path):
    write("run/config.yaml", to_yaml(load("ppo-cartpole")) + "base: /etc/secret.yaml\n")
    run = RunFolder(tmp_path / "run")
    message = r"config.yaml: has the key base, but the configuration of a run is complete: remove the key$"
    with pytest.raises(UserError, match=message):
        run.config()
    with pytest.raises(UserError, match=message):
        run.check_algorithm(["seed=3"])


@pytest.mark.parametrize("name", preset_names())
def test_saved_configuration_of_a_run_is_complete(write, tmp_path, name):
    config = load(name, ["seed=3"])
    write("run/config.yaml", to_yaml(config))
    assert RunFolder(tmp_path / "run").config() == config


def test_saved_configuration_may_be_edited_but_not_truncated(write, tmp_path):
    text, run = to_yaml(load("dqn-cartpole")), RunFolder(tmp_path / "run")
    write("run/config.yaml", text.replace("seed: 0", "seed: 5").replace("batch:", "batch: 7 # was"))
    assert (run.config().seed, run.config().algo.batch) == (5, 7)
    truncated = write("run/config.yaml", text.partition("\nstop:")[0] + "\nstop: {env_steps: 7}\n")
    with pytest.raises(UserError, match=r"config\.yaml: lacks (\w+, )*stop\.\w+.* \(is it cut off\?\).*; put back"):
        run.config()
    with pytest.raises(UserError, match="lacks"):
        run.check_algorithm(["seed=3"])
    with pytest.raises(UserError, match="lacks"):
        load(str(truncated), ["seed=3"], derive=False)
    assert load(str(truncated)).stop.env_steps == 7, "a file for starling train need not be complete"


ATARI = [name for name in preset_names() if name.endswith("-atari")]


@pytest.mark.parametrize("name", ATARI)
def test_atari_presets_work_with_any_game(name):
    config = load(name, ["env.id=ALE/Seaquest-v5"])
    assert (config.env.id, config.precision) == ("ALE/Seaquest-v5", "auto")
    assert load(name).env.id == "ALE/Breakout-v5"


@pytest.mark.parametrize("name", [name for name in preset_names() if name.endswith("-pong")])
def test_pong_presets_derive_from_the_atari_presets(name):
    assert yaml.safe_load(preset_text(name))["base"] == name.replace("-pong", "-atari")
    assert load(name).env.id == "ALE/Pong-v5"
