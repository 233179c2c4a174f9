"""Run folders of strangers: what they would import is listed and refused, and never imported unless it is allowed."""

import shutil
import sys

import gymnasium
import pytest
import yaml

import starling
from starling.errors import UserError

SMALL = [
    "stop.env_steps=64",
    "algo.rollout=32",
    "env.num=1",
    "algo.minibatches=1",
    "net.torso.hidden=[4]",
    "checkpoint.every=64",
]
CANARY = """
from pathlib import Path
Path({marker!r}).write_text("imported")
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv as Env
from starling.nets.torsos import mlp as torso
Wrapper, text, value = gymnasium.Wrapper, str, 3
gymnasium.register("Canary-v0", entry_point=Env, max_episode_steps=50)
"""


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A module that can be imported, and the file that says that it was."""
    name, marker = f"canary_{tmp_path.name}", tmp_path / "marker"
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{name}.py").write_text(CANARY.format(marker=str(marker)))
    monkeypatch.syspath_prepend(folder)
    yield name, marker
    sys.modules.pop(name, None)
    gymnasium.registry.pop("Canary-v0", None)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of CartPole, which imports nothing of anybody's."""
    return starling.train("ppo-cartpole", [*SMALL, "run=plain"], runs=tmp_path_factory.mktemp("runs")).folder


@pytest.fixture
def foreign(plain, tmp_path):
    """`foreign(key.sub=value)`: a copy of the run with other settings, as a stranger would send it."""

    def make(changes):
        folder = shutil.copytree(plain, tmp_path / "foreign", dirs_exist_ok=True)
        values = yaml.safe_load((folder / "config.yaml").read_text())
        for key, value in changes.items():
            *path, last = key.split(".")
            section = values
            for step in path:
                section = section[step]
            section[last] = value
        (folder / "config.yaml").write_text(yaml.safe_dump(values))
        return folder

    return make


PLACES = [
    ("env.id", lambda name: f"{name}:Env", "env.id"),
    ("env.id", lambda name: f"{name}:Canary-v0", "env.id"),
    ("env.wrappers", lambda name: [{"name": f"{name}:Wrapper"}], "env.wrappers.0.name"),
    ("env.args", lambda name: {"anything": [f"{name}:Env"]}, "env.args.anything.0"),
    ("net.torso.kind", lambda name: f"{name}:torso", "net.torso.kind"),
    ("net.core.kind", lambda name: f"{name}:Core", "net.core.kind"),
    ("algo.name", lambda name: f"{name}:Algorithm", "algo.name"),
    ("curiosity", lambda name: [{"kind": f"{name}:Novelty"}], "curiosity.0.kind"),
    ("curiosity", lambda name: [{"kind": "rnd", "torso": {"kind": f"{name}:torso"}}], "curiosity.0.torso.kind"),
]
COMMANDS = [
    ("eval", "{run}"),
    ("play", "{run}", "--log", "{out}"),
    ("resume", "{run}"),
    ("resume", "{run}", "run=branch", "algo.name=dqn"),
    ("resume", "{run}", "run=branch", "seed=3"),
    ("replay", "info", "{run}"),
    ("replay", "export", "{run}", "--out", "{out}"),
    ("replay", "sample", "{run}"),
    ("config", "show", "{run}"),
    ("config", "check", "{run}"),
    ("config", "diff", "ppo-cartpole", "{run}"),
    ("config", "show", "{run}/config.yaml"),
    ("config", "check", "{run}/config.yaml"),
    ("config", "diff", "{run}/config.yaml", "ppo-cartpole"),
    ("plan", "{run}/config.yaml"),
]


ALLOWED = [
    ["play", "{run}", "--episodes", "1", "--log", "{out}", "--allow", "{name}"],
    ["resume", "{run}", "--allow", "{name}"],
    ["replay", "info", "{run}", "--allow", "{name}"],
    ["replay", "export", "{run}", "--out", "{out}", "--allow", "{name}"],
    ["replay", "sample", "{run}", "--allow", "{name}"],
    ["config", "show", "{run}", "--allow", "{name}"],
    ["config", "check", "{run}", "--allow", "{name}"],
    ["config", "diff", "ppo-cartpole", "{run}", "--allow", "{name}"],
    ["plan", "{run}/config.yaml", "--seconds", "0.1", "--allow", "{name}"],
]


def listing(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def call(in_process, command, folder, tmp_path):
    return in_process(*(word.format(run=folder, out=tmp_path / "out.json") for word in command))


@pytest.mark.parametrize(("key", "value", "told"), PLACES)
def test_an_import_is_refused_wherever_it_stands(canary, foreign, in_process, key, value, told):
    name, marker = canary
    folder = foreign({key: value(name)})
    code, _, complaint = in_process("eval", folder)
    (line,) = complaint.splitlines()
    assert code == 2
    assert f"({told})" in line
    assert f"--allow {name} " in line
    assert not marker.exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("key", ["env.id", "algo.name"])
def test_every_command_refuses_before_it_imports_or_writes(canary, foreign, in_process, tmp_path, command, key):
    name, marker = canary
    folder = foreign({key: f"{name}:Env"})
    before = listing(tmp_path)
    code, printed, complaint = call(in_process, command, folder, tmp_path)
    (line,) = complaint.splitlines()
    assert (code, printed) == (2, "")
    assert f"{name}:Env ({key})" in line
    assert not marker.exists()
    assert listing(tmp_path) == before


@pytest.mark.parametrize("command", ALLOWED)
def test_every_command_takes_the_word(canary, foreign, in_process, tmp_path, command):
    """Whatever else it has to say: these runs have no replay, for example."""
    name, _ = canary
    folder = foreign({"env.id": f"{name}:Env"})
    words = [word.format(run=folder, out=tmp_path / "out.json", name=name) for word in command]
    refused, allowed = in_process(*words[:-2])[2], in_process(*words)[2]
    assert "is not known as a run of yours" in refused
    assert "is not known as a run of yours" not in allowed


@pytest.mark.parametrize("call", [starling.load, starling.resume])
def test_python_refuses_and_allows_too(canary, foreign, call):
    name, marker = canary
    folder = foreign({"env.id": f"{name}:Env", "stop.env_steps": 96})
    with pytest.raises(UserError, match=rf"would import {name}:Env \(env.id\)"):
        call(folder)
    assert not marker.exists()
    call(folder, allow=[name])
    assert marker.exists()


@pytest.mark.parametrize("path", ["Env", "Canary-v0"])
def test_a_word_allows_it(canary, foreign, in_process, path, monkeypatch):
    name, marker = canary
    folder = foreign({"env.id": f"{name}:{path}", "env.args": {}})
    assert in_process("eval", folder, "--allow", "other")[0] == 2
    assert not marker.exists()
    code, printed, complaint = in_process("eval", folder, "--episodes=1", "--allow", "other", "--allow", name)
    assert (code, complaint) == (0, "")
    assert printed.startswith("mean ")
    assert marker.exists()
    monkeypatch.setenv("STARLING_ALLOW", f"other,{name}")
    assert in_process("config", "show", folder)[0] == 0


def test_ones_own_run_needs_no_word_until_something_is_added_to_its_imports(canary, in_process, tmp_path):
    name, _ = canary
    settings = [*SMALL, f"env.id={name}:Env", "run=mine", f"--runs={tmp_path}"]
    assert in_process("train", "ppo-cartpole", *settings)[0] == 0
    mine = tmp_path / "mine"
    assert (mine / "trust.json").is_file()
    config = (mine / "config.yaml").read_text()
    (mine / "config.yaml").write_text(config.replace("env_steps: 64", "env_steps: 128"))
    for command in (
        ["eval", mine, "--episodes=1"],
        ["resume", mine],
        ["resume", mine, "stop.env_steps=160", "run=further"],
    ):
        code, _, complaint = in_process(*command)
        assert (code, complaint) == (0, "")
    assert in_process("eval", tmp_path / "further", "--episodes=1")[0] == 0  # a branch is one's own too
    (mine / "config.yaml").write_text(
        config.replace("kind: mlp", "kind: os:system").replace("kind: auto", "kind: os:system")
    )
    code, _, complaint = in_process("eval", mine)
    (line,) = complaint.splitlines()
    assert code == 2
    assert "its trust.json was made with another key or for another config.yaml" in line
    assert "os:system (net.torso.kind)" in line


def test_a_run_without_imports_has_no_seal_and_needs_none(plain, in_process):
    assert not (plain / "trust.json").exists()
    assert in_process("eval", plain, "--episodes=1")[0] == 0


def test_a_wrapper_that_writes_files_needs_a_word(foreign, in_process, tmp_path):
    folder = foreign({"env.wrappers": [{"name": "RecordVideo", "args": {"video_folder": str(tmp_path / "videos")}}]})
    code, _, complaint = in_process("eval", folder)
    assert code == 2
    assert "gymnasium.wrappers:RecordVideo (env.wrappers.0.name)" in complaint
    assert "--allow gymnasium.wrappers:RecordVideo " in complaint
    assert not (tmp_path / "videos").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"env.id": "os:system", "env.args": {"command": "touch {marker}"}},
            "env 'os:system' names a builtin_function",
        ),
        ({"env.id": "subprocess:Popen", "env.args": {"args": ["touch", "{marker}"]}}, "names the class Popen"),
        ({"env.id": "{name}:value"}, "names a int"),
        ({"env.wrappers": [{"name": "subprocess:Popen"}]}, "wrapper 'subprocess:Popen' names the class Popen"),
        ({"env.wrappers": [{"name": "os:system"}]}, "wrapper 'os:system' names a builtin_function"),
        ({"net.torso.kind": "subprocess:Popen"}, "torso 'subprocess:Popen' names the class Popen"),
        ({"net.core.kind": "subprocess:Popen"}, "core 'subprocess:Popen' names the class Popen"),
        ({"curiosity": [{"kind": "subprocess:Popen"}]}, "curiosity 'subprocess:Popen' names the class Popen"),
        ({"algo.name": "subprocess:Popen"}, "algorithm 'subprocess:Popen' needs an attribute Config"),
    ],
)
def test_what_is_allowed_must_be_of_its_kind_before_it_is_called(canary, foreign, in_process, tmp_path, changes, told):
    name, _ = canary
    marker = tmp_path / "called"
    filled = yaml.safe_load(yaml.safe_dump(changes).replace("{marker}", str(marker)).replace("{name}", name))
    words = [f"--allow={word}" for word in ("os", "subprocess", name)]
    code, _, complaint = in_process("eval", foreign(filled), *words)
    assert code == 2
    assert told in complaint
    assert len(complaint.splitlines()) == 1
    assert not marker.exists()


def test_a_strangers_run_is_evaluated_but_not_trained_in_the_cluster_that_it_names(foreign, in_process):
    folder = foreign({"runtime": "ray", "ray.address": "127.0.0.1:1"})
    for command in (["resume", folder], ["resume", folder, "seed=3", "run=branch"]):
        code, _, complaint = in_process(*command)
        assert code == 2
        assert "its config.yaml would join 127.0.0.1:1 (ray.address); nothing was done" in complaint
    with pytest.raises(UserError, match=r"would join 127.0.0.1:1 \(ray.address\)"):
        starling.resume(folder)
    code, _, complaint = in_process("resume", folder, "ray.address=127.0.0.1:2", "run=branch")  # typed
    assert code == 2
    assert "ray.address=127.0.0.1:2: nothing answers there" in complaint
    assert in_process("eval", folder, "--episodes=1")[0] == 0


def test_without_a_home_a_run_says_what_it_will_need(in_process, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nosuch")
    settings = ["ppo-cartpole", *SMALL, "env.id=starling.envs.toy:Identity"]
    code, printed, complaint = in_process("train", *settings, "run=mine", f"--runs={tmp_path}")
    assert code == 0
    (line,) = [line for line in (printed + complaint).splitlines() if line.startswith("warning: ")]
    assert "cannot be marked as yours (cannot write /proc/nosuch/starling/key: No such file or directory)" in line
    assert line.endswith("--allow starling")
    assert in_process("eval", tmp_path / "mine")[0] == 2
    assert in_process("eval", tmp_path / "mine", "--episodes=1", "--allow=starling")[0] == 0
    code, printed, complaint = in_process("verify-resume", *settings, "--steps=64")
    assert code == 0, printed + complaint
