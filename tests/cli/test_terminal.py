"""Only plain text reaches a terminal: text from files or overrides moves no cursor and adds no lines."""

import io
import json

import pytest

from starling.cli.progress import Progress
from starling.config.load import load
from starling.errors import UserError, escaped, printable
from starling.experiment.display import Logged
from starling.experiment.run_folder.folder import create

EVIL = "a\x1b[2J\nerror: forged\x9b1m\u202e"
SHOWN = r"a\x1b[2J\nerror: forged\x9b1m\u202e"
YAML = json.dumps(EVIL)

REFUSED = {
    "env argument": [f"env.args={{{YAML}: 1}}"],
    "wrapper argument": [f"env.wrappers=[{{name: ClipReward, args: {{{YAML}: 1}}}}]"],
    "wrapper": [f"env.wrappers=[{{name: {YAML}}}]"],
    "device": [f"device={YAML}"],
    "replay": [f"replay_from={YAML}"],
    "file of an env": ["env.id=Ant-v5", f"env.args.xml_file={YAML}"],
    "key": [f"{EVIL}=1"],
    "value": [f"seed={YAML}"],
    "environment": [f"env.id={YAML}"],
    "algorithm": [f"algo.name={YAML}"],
    "optimizer argument": [f"algo.optimizer.args={{{YAML}: 1}}"],
    "resource": ["runtime=ray", f"ray.actor.resources={{{YAML}: -1}}"],
    "inner key": [f"env.args.x={{{YAML}: .nan}}"],
}


def assert_text(printed):
    """Every line is plain text, and none of them is forged."""
    assert printed == "" or printed.endswith("\n")
    for line in printed.removesuffix("\n").split("\n"):
        assert line.isprintable(), line
        assert not line.startswith("error: forged")


@pytest.mark.parametrize("overrides", REFUSED.values(), ids=REFUSED)
def test_error_is_one_line_of_plain_text(overrides, in_process):
    if any("Ant" in override for override in overrides):
        pytest.importorskip("mujoco")
    code, _, complaint = in_process("config", "check", "ppo-cartpole", *overrides)
    assert code == 2
    assert complaint.startswith("error: ")
    assert complaint.count("\n") == 1
    assert_text(complaint)


def test_wrong_option_is_one_line_of_plain_text(in_process):
    code, _, complaint = in_process("train", "ppo-cartpole", f"--{EVIL}")
    assert code == 2
    assert_text(complaint)


def test_several_errors_are_several_lines():
    with pytest.raises(UserError) as error:
        load("ppo-cartpole", ["seed=-1", f"{EVIL}=1"])
    assert [line[:12] for line in str(error.value).split("\n")] == ["seed: must b", "unknown key "]


def test_shortened_line_keeps_its_beginning_and_its_advice():
    text = str(UserError(f"what is wrong: {'x' * 5000}; what to do"))
    assert len(text) <= 1500
    assert text.startswith("what is wrong: x")
    assert text.endswith("x; what to do")


def test_control_characters_are_escaped_and_text_is_unchanged():
    assert escaped(EVIL) == SHOWN
    assert escaped("größer 'ok'") == "größer 'ok'"
    assert printable("x" * 600) == "x" * 497 + "..."


@pytest.fixture
def run(tmp_path):
    place = create(tmp_path, load("ppo-cartpole", ["run=mine", f"env.args={{{YAML}: {YAML}}}"]))
    row = {
        "env_steps": 10,
        "return": 1.5,
        "updates": 1,
        "time/bottleneck": EVIL,
        f"loss/{EVIL}": 1.0,
        "time/steps_per_s": 5.0,
    }
    place.metrics_file.write_text(json.dumps(row) + "\n")
    return place


@pytest.mark.parametrize("options", [[], ["--csv", "-"]])
def test_metrics_are_plain_text(options, run, in_process):
    code, printed, complaint = in_process("metrics", run.path, *options)
    assert (code, complaint) == (0, "")
    assert rf"loss/{SHOWN}"[:14] in printed
    assert_text(printed)


def test_configurations_are_plain_text(run, in_process):
    for command in (["show", run.path], ["show", run.path, "--plain"], ["diff", "ppo-cartpole", run.path]):
        code, printed, complaint = in_process("config", *command)
        assert (code, complaint) == (0, "")
        assert r"\x1b" in printed or r"\e" in printed or r"\u001b" in printed
        assert_text(printed)


def test_shown_configuration_loads_unchanged(run, tmp_path, in_process):
    _, printed, _ = in_process("config", "show", run.path)
    (tmp_path / "shown.yaml").write_text(printed)
    assert load(str(tmp_path / "shown.yaml")).env.args == {EVIL: EVIL}


def test_progress_is_plain_text():
    stream = io.StringIO()
    display = Progress(load("ppo-cartpole"), stream)
    row = {"env_steps": 10, "return": 1.0, "updates": 1, "episodes": 1, f"loss/{EVIL}": 1.0, "time/steps_per_s": 5.0}
    display.row(row | {"time/bottleneck": EVIL})
    display.message(EVIL)
    display.close()
    assert_text(stream.getvalue())
    assert SHOWN in stream.getvalue().splitlines()


def test_log_of_a_run_is_plain_text(run):
    config = load("ppo-cartpole")
    Logged(Progress(config, io.StringIO()), run, config).message(EVIL)
    assert_text(run.log_file.read_text())
    assert SHOWN in run.log_file.read_text()
