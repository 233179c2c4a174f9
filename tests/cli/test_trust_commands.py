"""Run folders of strangers: imports they would cause are listed and rejected unless they are allowed."""

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
    """An importable module, and a file that exists once it was imported."""
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
    """A run of CartPole, whose configuration imports no foreign code."""
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
    ("env.wrappers", lambda name: {f"{name}:Wrapper": {}}, "env.wrappers"),
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
    ("config", "check", "{run}"),
    ("config", "check", "{file}"),
    ("train", "{file}", "--runs", "{out}"),
    ("plan", "{file}"),
    ("bench", "throughput", "--preset", "{file}"),
    ("tune-throughput", "{file}"),
    ("verify-resume", "{file}"),
    ("cluster", "check", "{file}"),
]
"""Every command that may import code named by a run; `{file}` is its `config.yaml`."""

ALLOWED = [
    ["play", "{run}", "--episodes", "1", "--log", "{out}", "--allow", "{name}"],
    ["resume", "{run}", "--allow", "{name}"],
    ["replay", "info", "{run}", "--allow", "{name}"],
    ["replay", "export", "{run}", "--out", "{out}", "--allow", "{name}"],
    ["replay", "sample", "{run}", "--allow", "{name}"],
    ["config", "check", "{run}", "--allow", "{name}"],
    ["config", "check", "{file}", "--allow", "{name}"],
    ["train", "{file}", "--runs", "{out}", "--allow", "{name}"],
    ["plan", "{file}", "--seconds", "0.1", "--allow", "{name}"],
    ["bench", "throughput", "--preset", "{file}", "--seconds", "0.1", "--allow", "{name}"],
    ["tune-throughput", "{file}", "unknown=1", "--allow", "{name}"],
    ["verify-resume", "{file}", "--steps", "64", "--allow", "{name}"],
    ["cluster", "check", "{file}", "ray.address=127.0.0.1:1", "--allow", "{name}"],
]


def listing(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def call(in_process, command, folder, tmp_path):
    file, out = folder / "config.yaml", tmp_path / "out.json"
    return in_process(*(word.format(run=folder, file=file, out=out) for word in command))


@pytest.mark.parametrize(("key", "value", "told"), PLACES)
def test_import_is_rejected_under_any_key(canary, foreign, in_process, key, value, told):
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
def test_every_command_rejects_before_importing_or_writing(canary, foreign, in_process, tmp_path, command, key):
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
def test_every_command_accepts_allow(canary, foreign, in_process, tmp_path, command):
    """Other errors are fine: these runs have no replay, for example."""
    name, _ = canary
    folder = foreign({"env.id": f"{name}:Env"})
    file, out = folder / "config.yaml", tmp_path / "out.json"
    words = [word.format(run=folder, file=file, out=out, name=name) for word in command]
    refused, allowed = in_process(*words[:-2])[2], in_process(*words)[2]
    assert "is not known as a run of yours" in refused
    assert "is not known as a run of yours" not in allowed


@pytest.mark.parametrize("call", [starling.load, starling.resume])
def test_python_api_rejects_and_allows_in_the_same_way(canary, foreign, call):
    name, marker = canary
    folder = foreign({"env.id": f"{name}:Env", "stop.env_steps": 96})
    with pytest.raises(UserError, match=rf"would import {name}:Env \(env.id\)"):
        call(folder)
    assert not marker.exists()
    call(folder, allow=[name])
    assert marker.exists()


@pytest.mark.parametrize("path", ["Env", "Canary-v0"])
def test_allow_option_and_variable_allow_an_import(canary, foreign, in_process, path, monkeypatch):
    name, marker = canary
    folder = foreign({"env.id": f"{name}:{path}", "env.args": {}})
    assert in_process("eval", folder, "--allow", "other")[0] == 2
    assert not marker.exists()
    code, printed, complaint = in_process("eval", folder, "--episodes=1", "--allow", "other", "--allow", name)
    assert (code, complaint) == (0, "")
    assert printed.startswith("mean ")
    assert marker.exists()
    monkeypatch.setenv("STARLING_ALLOW", f"other,{name}")
    assert in_process("eval", folder, "--episodes=1")[0] == 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if "{file}" in c])
@pytest.mark.parametrize("form", ["renamed", "linked", "through a link"])
def test_file_in_a_run_folder_is_checked_under_any_name(canary, foreign, in_process, tmp_path, command, form):
    name, marker = canary
    folder = foreign({"algo.name": f"{name}:Env"})
    if form == "renamed":
        file = (folder / "config.yaml").rename(folder / "mine.yaml")
    elif form == "linked":
        file = tmp_path / "mine.yaml"
        file.symlink_to(folder / "config.yaml")
    else:
        (tmp_path / "link").symlink_to(folder)
        file = tmp_path / "link" / "config.yaml"
    code, _, complaint = in_process(*(word.format(file=file, out=tmp_path / "out.json") for word in command))
    (line,) = complaint.splitlines()
    assert code == 2
    assert f"{folder} is not known as a run of yours" in line
    assert not marker.exists()


def _with_dangling_link(folder):
    (folder / "metrics.jsonl").unlink()
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to("nowhere")
    return folder / "config.yaml"


def _in_a_folder_of_the_run(folder):
    return shutil.copy(folder / "config.yaml", folder / "checkpoints" / "tuned.yaml")


def _as_base_of_own_file(folder):
    file = folder.parent / "mine.yaml"
    file.write_text(f"base: {folder.name}/config.yaml\nseed: 3\n")
    return file


def _as_base_beside_the_run(folder):
    """A file in the run that derives from one that came with it."""
    shutil.move(folder / "config.yaml", folder.parent / "other.yaml")
    (folder / "config.yaml").write_text("base: ../other.yaml\n")
    return _as_base_of_own_file(folder)


def _as_link_out_of_the_run(folder):
    shutil.move(folder / "config.yaml", folder.parent / "other.yaml")
    (folder / "config.yaml").symlink_to("../other.yaml")
    return folder / "config.yaml"


@pytest.mark.parametrize(
    "make",
    [
        _with_dangling_link,
        _in_a_folder_of_the_run,
        _as_base_of_own_file,
        _as_base_beside_the_run,
        _as_link_out_of_the_run,
    ],
)
def test_file_that_came_with_a_run_is_checked_wherever_it_is(canary, foreign, in_process, make):
    name, marker = canary
    folder = foreign({"env.id": f"{name}:Env"})
    file = make(folder)
    code, _, complaint = in_process("config", "check", file)
    (line,) = complaint.splitlines()
    assert code == 2
    assert f"{folder} is not known as a run of yours" in line
    with pytest.raises(UserError, match="is not known as a run of yours"):
        starling.train(str(file), runs=folder.parent / "runs")
    assert not marker.exists()


def test_cluster_of_a_run_that_is_a_base_must_be_allowed(foreign, in_process, tmp_path):
    (tmp_path / "mine.yaml").write_text("base: foreign/config.yaml\nseed: 3\n")
    foreign({"runtime": "ray", "ray.address": "127.0.0.1:1"})
    code, _, complaint = in_process("train", tmp_path / "mine.yaml", "--runs", tmp_path / "runs")
    assert code == 2
    assert "would join 127.0.0.1:1 (ray.address)" in complaint


def test_own_file_may_derive_from_own_run_and_import_more(canary, in_process, tmp_path):
    name, _ = canary
    settings = [*SMALL, f"env.id={name}:Env", "run=mine", f"--runs={tmp_path}"]
    assert in_process("train", "ppo-cartpole", *settings)[0] == 0
    (tmp_path / "own.yaml").write_text(f"base: mine/config.yaml\nnet: {{torso: {{kind: '{name}:torso'}}}}\n")
    assert "is not known as a run of yours" not in in_process("config", "check", tmp_path / "own.yaml")[2]


def test_checking_a_run_reads_no_other_folder_that_it_names(foreign, in_process, tmp_path):
    code, _, complaint = in_process("config", "check", foreign({"replay_from": str(tmp_path / "elsewhere")}))
    assert (code, complaint) == (0, "")


@pytest.mark.parametrize(("key", "value", "told"), PLACES)
def test_show_and_diff_import_nothing(canary, foreign, in_process, tmp_path, key, value, told):
    """Wherever the file is, these commands are for looking at what a stranger has sent."""
    name, marker = canary
    folder = foreign({key: value(name)})
    lone = shutil.copy(folder / "config.yaml", tmp_path / "lone.yaml")
    (tmp_path / "derived.yaml").write_text(f"base: lone.yaml\nalgo: {{name: '{name}:Other', gae_lambda: 0.5}}\n")
    for source in (folder, folder / "config.yaml", lone, tmp_path / "derived.yaml"):
        for command in (["show", source], ["show", source, "--plain", "seed=3"], ["diff", "ppo-cartpole", source]):
            code, printed, complaint = in_process("config", *command)
            assert (code, complaint) == (0, "")
            assert name in printed
    assert not marker.exists()


def test_settings_of_an_algorithm_that_is_not_imported_are_shown_unchanged(in_process, tmp_path):
    file = tmp_path / "lone.yaml"
    file.write_text("base: ppo-cartpole\nalgo: {name: 'antigravity:x', strange: {key: [1, two]}, api_key: abcdefgh}\n")
    for more in ([], ["--plain"]):
        code, printed, _ = in_process("config", "show", file, "algo.other=3", *more)
        assert code == 0
        shown = yaml.safe_load(printed)["algo"]
        assert shown["name"] == "antigravity:x"
        assert shown["strange"] == {"key": [1, "two"]}
        assert (shown["other"], shown["api_key"]) == (3, "[hidden]")
    assert "antigravity" not in sys.modules


def test_file_outside_of_run_folders_is_trusted(canary, in_process, tmp_path):
    name, marker = canary
    (tmp_path / "mine.yaml").write_text(f"base: ppo-cartpole\nenv: {{id: '{name}:Env'}}\n")
    assert in_process("config", "check", tmp_path / "mine.yaml")[0] == 0
    assert marker.exists()


def test_python_api_checks_files_in_run_folders(canary, foreign, tmp_path):
    name, marker = canary
    file = str(foreign({"env.id": f"{name}:Env"}) / "config.yaml")
    with pytest.raises(UserError, match=rf"would import {name}:Env \(env.id\)"):
        starling.train(file, runs=tmp_path / "runs")
    assert not marker.exists()
    assert starling.train(file, ["run=mine"], runs=tmp_path / "runs", allow=[name]).folder.name == "mine"
    file = str(foreign({"env.id": "CartPole-v1", "ray.address": "127.0.0.1:1"}) / "config.yaml")
    with pytest.raises(UserError, match=r"would join 127.0.0.1:1 \(ray.address\)"):
        starling.train(file, runs=tmp_path / "runs")


@pytest.mark.parametrize("command", ["train", "plan", "tune-throughput", "verify-resume"])
def test_run_folder_cannot_be_used_as_a_preset(plain, in_process, command):
    code, _, complaint = in_process(command, plain)
    assert code == 2
    assert f"{plain} is a folder; to use the settings of a run give {plain}/config.yaml" in complaint


def test_own_run_is_trusted_until_its_imports_change(canary, in_process, tmp_path):
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
    assert in_process("eval", tmp_path / "further", "--episodes=1")[0] == 0  # a branch is the user's own, too
    (mine / "config.yaml").write_text(
        config.replace("kind: mlp", "kind: os:system").replace("kind: auto", "kind: os:system")
    )
    code, _, complaint = in_process("eval", mine)
    (line,) = complaint.splitlines()
    assert code == 2
    assert "its trust.json was made with another key or for another config.yaml" in line
    assert "os:system (net.torso.kind)" in line


def test_run_without_imports_needs_no_seal(plain, in_process):
    assert not (plain / "trust.json").exists()
    assert in_process("eval", plain, "--episodes=1")[0] == 0


def test_wrapper_that_writes_files_must_be_allowed(foreign, in_process, tmp_path):
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
def test_allowed_object_of_a_wrong_kind_is_not_called(canary, foreign, in_process, tmp_path, changes, told):
    name, _ = canary
    marker = tmp_path / "called"
    filled = yaml.safe_load(yaml.safe_dump(changes).replace("{marker}", str(marker)).replace("{name}", name))
    words = [f"--allow={word}" for word in ("os", "subprocess", name)]
    code, _, complaint = in_process("eval", foreign(filled), *words)
    assert code == 2
    assert told in complaint
    assert len(complaint.splitlines()) == 1
    assert not marker.exists()


def test_foreign_run_is_evaluated_but_not_trained_in_its_cluster(foreign, in_process):
    folder = foreign({"runtime": "ray", "ray.address": "127.0.0.1:1"})
    for command in (["resume", folder], ["resume", folder, "seed=3", "run=branch"]):
        code, _, complaint = in_process(*command)
        assert code == 2
        assert "its configuration would join 127.0.0.1:1 (ray.address); nothing was done" in complaint
    with pytest.raises(UserError, match=r"would join 127.0.0.1:1 \(ray.address\)"):
        starling.resume(folder)
    code, _, complaint = in_process("resume", folder, "ray.address=127.0.0.1:2", "run=branch")  # typed by the user
    assert code == 2
    assert "ray.address=127.0.0.1:2: nothing answers there" in complaint
    assert in_process("eval", folder, "--episodes=1")[0] == 0


OPEN = {"ray.address": "ray://127.0.0.1:9", "ray.allow_cluster_without_authentication": True}


def test_branch_does_not_make_a_foreign_cluster_trusted(canary, foreign, in_process, tmp_path):
    name, _ = canary
    folder = foreign(OPEN | {"env.id": f"{name}:Env"})
    settings = ["stop.env_steps=96", f"--runs={tmp_path}"]
    assert in_process("resume", folder, "run=child", *settings, "--allow", name)[0] == 0
    child = tmp_path / "child"
    assert in_process("eval", child, "--episodes=1")[0] == 0  # its imports are sealed
    for more in (["runtime=ray", "run=grandchild"], ["runtime=ray", "ray.address=ray://127.0.0.1:9", "run=grandchild"]):
        code, _, complaint = in_process("resume", child, *more)
        assert code == 2
        assert (
            "child is not known as a run of yours (its trust.json does not cover that), and its configuration would"
            in (complaint)
        )
    assert not (tmp_path / "grandchild").exists()


def test_branch_seals_a_cluster_that_was_typed_allowed_or_sealed(foreign, in_process, tmp_path):
    settings = ["stop.env_steps=96", f"--runs={tmp_path}"]
    typed = [f"{key}={str(value).lower()}" for key, value in OPEN.items()]
    words = ["--allow", "ray://127.0.0.1:9", "--allow", "ray.allow_cluster_without_authentication"]
    folder = foreign(OPEN)
    assert in_process("resume", folder, "run=typed", *typed, *settings)[0] == 0
    assert in_process("resume", folder, "run=allowed", *settings, *words)[0] == 0
    assert in_process("resume", tmp_path / "typed", "run=sealed", "stop.env_steps=128", f"--runs={tmp_path}")[0] == 0
    for run in ("typed", "allowed", "sealed"):
        code, _, complaint = in_process("resume", tmp_path / run, "runtime=ray", "run=further")
        assert code == 2
        assert "ray.address=ray://127.0.0.1:9: nothing answers there" in complaint


@pytest.mark.parametrize("command", ["train {file} run=mine", "tune-throughput {file} --out {out}"])
def test_new_run_or_file_does_not_make_a_foreign_cluster_trusted(foreign, in_process, tmp_path, command):
    file, out = foreign(OPEN) / "config.yaml", tmp_path / "tuned.yaml"
    code, _, complaint = in_process(*command.format(file=file, out=out).split())
    assert code == 2
    assert "would join ray://127.0.0.1:9 (ray.address), ray.allow_cluster" in complaint


@pytest.mark.parametrize("command", COMMANDS[-5:])
def test_command_on_a_foreign_file_does_not_join_its_cluster(foreign, in_process, tmp_path, command):
    folder = foreign(OPEN | {"runtime": "ray"})
    code, _, complaint = call(in_process, command, folder, tmp_path)
    assert code == 2
    assert "would join ray://127.0.0.1:9 (ray.address)" in complaint


def test_branch_does_not_allow_further_imports(canary, foreign, in_process, tmp_path):
    name, _ = canary
    folder = foreign({"env.id": f"{name}:Env", "net.torso.kind": "antigravity:x"})
    for more in ([], ["net.torso.kind=mlp"]):
        code, _, complaint = in_process("resume", folder, "run=child", *more, f"--runs={tmp_path}", "--allow", name)
        assert code == 2
        assert "would import antigravity:x (net.torso.kind);" in complaint
    assert not (tmp_path / "child").exists()


def test_without_a_key_file_a_run_says_which_option_it_will_need(in_process, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nosuch")
    settings = ["ppo-cartpole", *SMALL, "env.id=starling.envs.toy:Identity"]
    code, printed, complaint = in_process("train", *settings, "run=mine", f"--runs={tmp_path}")
    assert code == 0
    (line,) = [line for line in (printed + complaint).splitlines() if line.startswith("warning: ")]
    run = tmp_path / "mine"
    assert f"next:     starling eval {run} --episodes 20 --allow starling\n" in printed
    assert f"          starling resume {run} stop.env_steps=128 --allow starling\n" in printed
    assert "cannot be marked as yours (cannot write /proc/nosuch/starling/key: No such file or directory)" in line
    assert line.endswith("--allow starling")
    assert in_process("eval", tmp_path / "mine")[0] == 2
    assert in_process("eval", tmp_path / "mine", "--episodes=1", "--allow=starling")[0] == 0
    code, printed, complaint = in_process("verify-resume", *settings, "--steps=64")
    assert code == 0, printed + complaint
