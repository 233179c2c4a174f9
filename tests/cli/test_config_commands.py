"""`starling config` and the listings, as a user runs them."""

import json
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest
import yaml

from starling.config.load import load, preset_names, to_yaml
from starling.tools.results.records import Result, append

SHORT = "algo: {name: ppo}\nenv: {id: CartPole-v1}\n"


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("options", [[], ["--plain"]])
def test_output_of_show_is_accepted_by_train(in_process, preset, options, tmp_path):
    code, printed, _ = in_process("config", "show", preset, "seed=3", *options)
    assert code == 0
    file = tmp_path / "saved.yaml"
    file.write_text(printed)
    assert load(str(file)) == load(preset, ["seed=3"])
    assert ("#" in printed) is (not options)


def test_show_describes_every_key(in_process):
    _, printed, _ = in_process("config", "show", "ppo-cartpole")
    lines = printed.splitlines()
    assert len(lines) > 60
    assert [line for line in lines if "  # " not in line] == []
    assert any(line.startswith("  discount: 0.98 ") and line.endswith("# gamma") for line in lines)


def test_check_prints_ok_or_all_errors(in_process, tmp_path):
    assert in_process("config", "check", "dqn-cartpole", "algo.optimizer.args.lr=1e-4") == (0, "ok\n", "")
    file = tmp_path / "my.yaml"
    file.write_text(SHORT + "sede: 1\n")
    code, printed, complaint = in_process("config", "check", file, "lr=1", "env.id=CartPool-v1", "nothing")
    assert (code, printed) == (2, "")
    lines = complaint.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "error: 'nothing' is not an override",
        "error: unknown key 'sede'",
        "error: unknown key 'lr'",
        "error: unknown environment 'CartPool-v1'",
    ]
    assert "'CartPole-v1'" in lines[3]


@pytest.mark.parametrize("id", ["toy/memory", "ALE/Pong-v5", "MinAtar/Breakout-v1", "starling.envs.toy:Memory"])
def test_check_accepts_every_kind_of_id(in_process, id):
    assert in_process("config", "check", "ppo", f"env.id={id}") == (0, "ok\n", "")


@pytest.mark.parametrize("preset", preset_names())
def test_check_accepts_every_preset(in_process, preset):
    assert in_process("config", "check", preset) == (0, "ok\n", "")


def test_config_commands_do_not_import_torch():
    script = """
        import sys
        from starling.cli.main import app
        for arguments in [
            ["config", "show", "ppo-cartpole"],
            ["config", "schema"],
            ["config", "diff", "ppo-cartpole", "dqn-cartpole"],
            ["presets"],
            ["algos"],
            ["envs"],
        ]:
            app(arguments, standalone_mode=False)
            assert "torch" not in sys.modules, arguments
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_schema_is_for_one_algorithm_or_for_all(in_process):
    code, printed, _ = in_process("config", "schema")
    assert code == 0
    assert {"DQNConfig", "PPOConfig", "EnvConfig"} <= json.loads(printed)["$defs"].keys()
    narrowed = json.loads(in_process("config", "schema", "--algo", "ppo")[1])
    assert "DQNConfig" not in narrowed["$defs"]
    assert narrowed["properties"]["algo"]["anyOf"] == [{"$ref": "#/$defs/PPOConfig"}]
    assert narrowed["properties"]["stop"]["default"]["return"] is None
    code, _, complaint = in_process("config", "schema", "--algo", "pppo")
    assert code == 2
    assert "unknown algorithm 'pppo'; did you mean 'ppo'" in complaint


def test_diff_between_a_preset_a_file_and_a_run(in_process, tmp_path):
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    changed = ["seed=3", "algo.clip=0.3", "algo.optimizer.args.lr=1e-2", "net.torso.hidden=[8]"]
    (run / "config.yaml").write_text(to_yaml(load("ppo-cartpole", changed)))
    code, printed, _ = in_process("config", "diff", "ppo-cartpole", run)
    assert code == 0
    assert printed.splitlines() == [
        "seed: 0 -> 3",
        "algo.clip.start: 0.2 -> 0.3",
        "algo.clip.end: 0.0 -> 0.3",
        "algo.optimizer.args.lr: 0.0015 -> 0.01",
        "net.torso.hidden: [64, 64] -> [8]",
    ]
    assert in_process("config", "diff", run, run / "config.yaml") == (0, "no difference\n", "")
    across = in_process("config", "diff", "ppo-cartpole", "dqn-cartpole")[1].splitlines()
    assert {"algo.name: ppo -> dqn", "algo.rollout: 32 -> (none)", "algo.batch: (none) -> 64"} <= set(across)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config", "diff", "ppo-cartpole", "runs/none"], "no such run: runs/none"),
        (["config", "diff", "ppo-cartpole", "/"], "/ is not a run"),
        (["config", "show", "ppo-cartpol"], "unknown preset 'ppo-cartpol'; did you mean 'ppo-cartpole'"),
        (["config", "show", "none.yaml"], "no such file: none.yaml"),
        (["envs", "no-such-env"], "no environment has 'no-such-env' in its id"),
    ],
)
def test_invalid_input_is_a_one_line_error(in_process, arguments, message):
    code, printed, complaint = in_process(*arguments)
    assert (code, printed) == (2, "")
    assert len(complaint.splitlines()) == 1
    assert message in complaint


def test_presets_are_listed_with_their_description(in_process, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, printed, _ = in_process("presets")
    assert code == 0
    line = next(line for line in printed.splitlines() if line.startswith("ppo-cartpole "))
    assert line.split()[1:3] == ["ppo", "CartPole-v1"]
    assert "PPO on CartPole" in line
    rows = json.loads(in_process("presets", "--json")[1])
    assert [row["name"] for row in rows] == preset_names()
    assert all(row["summary"] and row["algorithm"] and row["env"] for row in rows)


def test_presets_are_listed_with_their_results(in_process, monkeypatch, tmp_path):
    file = tmp_path / "results.jsonl"
    monkeypatch.setattr("starling.tools.results.records.FILE", file)
    monkeypatch.setenv("COLUMNS", "200")
    fields = {"score", "seeds", "env_steps", "minutes", "date", "protocol", "overrides"}

    def measured(name):
        lines = in_process("presets")[1].splitlines()
        (at,) = [number for number, line in enumerate(lines) if line.startswith(f"{name} ")]
        row = next(row for row in json.loads(in_process("presets", "--json")[1]) if row["name"] == name)
        assert fields <= row.keys()
        return lines[at + 1].strip(), {key: row[key] for key in fields}

    assert measured("ppo-cartpole") == ("not measured", dict.fromkeys(fields))
    protocol = "mean of 30 evaluation episodes"
    for seed, score in enumerate([400.0, 500.0, 480.0]):
        one = Result("ppo-cartpole", (), seed, 50_000, 1.25, score, protocol, {}, "here", date="2026-11-18")
        append(one, file)
        if seed == 0:
            line = "score 400.0 (1 seed) at 50,000 env steps, 1.25 minutes, 2026-11-18"
            assert measured("ppo-cartpole")[0] == line
    assert measured("ppo-cartpole") == (
        "score 480.0 (median of 3 seeds) at 50,000 env steps, 1.25 minutes, 2026-11-18",
        {
            "score": 480.0, "seeds": 3, "env_steps": 50_000, "minutes": 1.25, "date": "2026-11-18",
            "protocol": protocol, "overrides": [],
        },
    )  # fmt: skip
    assert measured("dqn-cartpole")[0] == "not measured"
    append(Result("dqn-cartpole", ("stop.env_steps=9",), 0, 9, None, -1.0, protocol, {}, "here"), file)
    assert measured("dqn-cartpole")[0] == "score -1 (1 seed) at 9 env steps"
    file.write_bytes(file.read_bytes()[:-9])
    code, printed, complaint = in_process("presets")
    assert (code, printed) == (2, "")
    assert complaint.startswith(f"error: {file} line 4 is damaged")
    assert len(complaint.splitlines()) == 1


def test_algorithms_are_listed(in_process):
    rows = json.loads(in_process("algos", "--json")[1])
    assert {"dqn", "ppo"} <= {row["name"] for row in rows}
    printed = " ".join(in_process("algos")[1].split())
    assert all(f"{row['name']} {row['summary']}" in printed for row in rows)
    assert "algo.name=package.module:Class" in printed


def test_environments_are_listed_by_family(in_process):
    rows = json.loads(in_process("envs", "--json")[1])
    family = {row["id"]: row["family"] for row in rows}
    assert family["CartPole-v1"] == "Gymnasium"
    assert family["MinAtar/Breakout-v1"] == "MinAtar"
    assert family["toy/memory"] == "toy"
    assert family.get("SuperMarioBros-1-1-v0") == ("Super Mario Bros." if find_spec("nes_py") else None)
    code, printed, _ = in_process("envs", "CARTPOLE-V1")
    assert code == 0
    assert "CartPole-v1" in printed
    assert "toy/memory" not in printed
    assert "env.id=package.module:factory" in printed


@pytest.mark.parametrize("columns", [60, 80, 200, None])
@pytest.mark.parametrize("command", ["presets", "algos", "envs"])
def test_listings_fit_the_terminal_without_breaking_names(in_process, monkeypatch, command, columns):
    """Without a terminal, as in a pipe, the width is 80 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    rows = json.loads(in_process(command, "--json")[1])
    printed = in_process(command)[1]
    words = printed.split()
    names = [row[key] for row in rows for key in ("id", "name", "env") if key in row]
    assert len(names) > 5
    assert [name for name in names if name not in words] == []
    text = " ".join(words)
    assert [row for row in rows if row.get("summary", "") not in text] == []
    listed = printed.partition("\n\n")[0]  # without the text after a list
    assert [line for line in listed.splitlines() if len(line) > (columns or 80)] == []


def test_missing_packages_are_listed_with_one_line_each(in_process, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    printed = in_process("envs")[1]
    assert "not installed: ALE/... (pip install 'starling-rl[atari]')\n" in printed
    assert "ALE/Pong-v5" not in printed
    code, printed, complaint = in_process("envs", "ale/")
    assert (code, printed) == (2, "")
    assert complaint == "error: not installed: ALE/... (pip install 'starling-rl[atari]')\n"


def test_environments_that_would_come_with_a_package_are_listed_apart(in_process, monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    listed, _, apart = in_process("envs")[1].partition("\n\n")
    assert "popgym-AutoencodeEasy-v0" in listed
    assert "MiniGrid" not in listed
    assert "not installed: MiniGrid-... and BabyAI-... (pip install 'starling-rl[minigrid]')\n" in apart
    assert "cannot be installed: DeepMind Lab has no wheel" in apart
    code, _, complaint = in_process("envs", "minigrid-empty")
    assert (code, complaint) == (2, "error: not installed: MiniGrid-... (pip install 'starling-rl[minigrid]')\n")
    assert "envpool/CoinrunHard-v0" in in_process("envs", "procgen")[2]


def test_plain_output_is_ordinary_yaml(in_process):
    printed = in_process("config", "show", "dqn-cartpole", "--plain")[1]
    assert yaml.safe_load(printed)["algo"]["optimizer"]["args"]["lr"] == 0.001


@pytest.mark.parametrize(
    ("name", "networks", "text"),
    [
        ("ppo", ["policy", "value"], "value_STREAM optional: an intrinsic reward's own"),
        ("dqn", ["q"], "in YAML: nets: {q: {}}"),
        ("sac", ["policy", "critics"], "in YAML: nets: {policy: {}, critics: {}}"),
        ("own_algorithm:Reinforce", ["policy", "value"], "value the baseline"),
        ("td3:TD3", [], "td3:TD3 names no networks to configure one by one; net configures all of them"),
    ],
)
def test_networks_of_an_algorithm_are_listed(in_process, name, networks, text):
    assert [row["name"] for row in json.loads(in_process("algos", name, "--json")[1])] == networks
    code, printed, _ = in_process("algos", name)
    assert code == 0
    assert text in " ".join(printed.split())
    assert ("_STREAM" in printed) == (name in ("ppo", "dqn"))


def test_networks_of_an_unknown_algorithm_are_a_one_line_error(in_process):
    code, printed, complaint = in_process("algos", "pppo")
    assert (code, printed) == (2, "")
    assert complaint.startswith("error: unknown algorithm 'pppo'; did you mean 'ppo'")
    assert len(complaint.splitlines()) == 1
