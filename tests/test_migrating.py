"""The page for users of other projects: each of its commands trains, continues, evaluates, or plays."""

import re
import shlex
from pathlib import Path

import pytest

from starling.cli.main import app
from starling.cli.precheck import load_checked
from starling.config.load import load, preset_names

PAGE = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text()
SECTIONS = {text.partition("\n")[0]: text for text in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
SHORT = ["stop.updates=3", "env.atari.max_frames=400", "net.torso.hidden=[16]", "threads=1"]
REPLAY = ["algo.capacity=2000", "algo.updates_per_step=0.05"]
TRANSITIONS = [*REPLAY, "algo.learning_starts=64", "algo.batch=16", "algo.fragment=8"]
SMALL = {
    "dqn": TRANSITIONS,
    "apex": TRANSITIONS,
    "r2d2": [*REPLAY, "algo.learning_starts=4", "algo.batch=4"],
    "ngu": [*REPLAY, "algo.learning_starts=4", "algo.batch=4", "algo.policies=2", "algo.episodic.capacity=50"],
    "impala": ["env.num=4", "algo.batch=4", "algo.unroll=5"],
    "ppo": ["env.num=4", "algo.rollout=8", "algo.minibatches=2"],
}
"""Settings with which three updates come soon."""


def blocks(text, language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for kind, code in found if kind == language]


def commands(text):
    """The arguments of each command of Starling in the code blocks of a text."""
    for block in blocks(text, ""):
        lines = re.sub(r"\\\n", " ", block)
        for command in re.findall(r"^(?:nohup )?starling ((?:[^'\n]|'[^']*')*)$", lines, re.MULTILINE):
            yield shlex.split(re.sub(r"\s>.*$|\s#.*$", "", command))


def write_files(text, root):
    """Write the configuration files in a text; each begins with a comment that names it."""
    for block in blocks(text, "yaml"):
        file = root / block.partition("\n")[0].removeprefix("# ")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block)


def shortened(arguments):
    """The same command for a few updates or steps."""
    command, source, *rest = arguments
    if command == "train":
        overrides = [word for word in rest if "=" in word]
        return [*arguments, *SMALL[load(source, overrides).algo.name], *SHORT]
    return [
        *arguments,
        *{"resume": ["stop.updates=6"], "eval": ["--episodes=1"], "play": ["--max-steps=3"]}.get(command, []),
    ]


def test_page_has_commands_and_files_for_every_project():
    assert len(SECTIONS) == 5
    for title, text in SECTIONS.items():
        kinds = {arguments[0] for arguments in commands(text)}
        assert "train" in kinds, title
        assert {"eval", "play", "metrics"} & kinds, title
        assert len(list(commands(text))) == len(re.findall(r"^(?:nohup )?starling ", text, re.MULTILINE)), title
    assert len(blocks(PAGE, "yaml")) >= 4


@pytest.mark.parametrize("title", SECTIONS)
def test_every_configuration_on_the_page_is_accepted(title, tmp_path, monkeypatch):
    write_files(SECTIONS[title], tmp_path)
    monkeypatch.chdir(tmp_path)
    for command, source, *rest in commands(SECTIONS[title]):
        if command == "train":
            config = load_checked(source, [word for word in rest if "=" in word])
            assert config.env.id.startswith("ALE/")
            assert config.run is not None, "later commands name the run"


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_every_command_on_the_page_works(title, tmp_path, monkeypatch, capfd):
    write_files(SECTIONS[title], tmp_path)
    monkeypatch.chdir(tmp_path)
    for arguments in commands(SECTIONS[title]):
        code = app(shortened(arguments), standalone_mode=False)
        assert code in (0, None), (arguments, capfd.readouterr())
        if arguments[0] == "train":
            assert "stop.updates=3 reached" in capfd.readouterr().out, arguments


def test_presets_on_the_page_exist():
    named = {arguments[1] for arguments in commands(PAGE) if arguments[0] == "train"}
    assert {name for name in named if not name.endswith(".yaml")} <= set(preset_names())
