"""The commands as a user runs them."""

import json
import shutil
import subprocess
import sys
import textwrap
from importlib import metadata

import pytest

from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import TIMING, read_rows
from starling.tools import evaluate as evaluation

RUN = ["dqn-cartpole", "seed=3", "run=a", "stop.env_steps=1500", "stop.return=null", "algo.learning_starts=200"]


def starling(*arguments, cwd=None):
    command = [sys.executable, "-m", "starling", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """One short run."""
    root = tmp_path_factory.mktemp("runs")
    done = starling("train", *RUN, "--runs", root)
    assert done.returncode == 0, done.stderr
    return root, done


def test_train_ends_with_the_score_the_folder_and_next_commands(trained_run):
    root, done = trained_run
    assert "score:" in done.stdout
    assert f"run:      {root / 'a'}" in done.stdout
    assert f"starling eval {root / 'a'}" in done.stdout
    assert done.stderr == ""


def test_same_seed_gives_the_same_metrics_in_a_new_folder(trained_run, in_process):
    """Even in another process."""
    root, _ = trained_run
    code, _, complaint = in_process("train", *RUN, "--runs", root)
    assert code == 0, complaint
    one, two = (read_rows(RunFolder(root / name).metrics_file) for name in ("a", "a-2"))
    assert len(one) > 10
    for row in one + two:
        assert {"env_steps", "updates", "return"} <= row.keys()
        for key in [key for key in row if key.startswith(TIMING)]:
            del row[key]
    assert one == two
    assert one[-1]["updates"] > 100


def test_eval_prints_json_on_its_last_line(trained_run, in_process):
    root, _ = trained_run
    code, printed, complaint = in_process("eval", root / "a", "--episodes", 11, "--json")
    assert code == 0, complaint
    result = json.loads(printed.splitlines()[-1])
    assert {"mean", "median", "std", "episodes", "protocol"} <= result.keys()
    assert result["episodes"] == 11
    assert 1 <= result["mean"] <= 500


def test_eval_seed_determines_the_envs(trained_run, in_process):
    root, _ = trained_run

    def evaluate(seed):
        code, printed, complaint = in_process("eval", root / "a", "--episodes", 5, "--seed", seed, "--json")
        assert code == 0, complaint
        return json.loads(printed.splitlines()[-1])

    one = evaluate(7)
    assert one["seed"] == 7
    assert evaluate(7) == one
    assert {**evaluate(8), "seed": 7} != one


def test_eval_of_an_older_checkpoint_gives_the_same_as_when_it_was_the_newest(trained_run, tmp_path, in_process):
    root, _ = trained_run
    copy = shutil.copytree(root / "a", tmp_path / "a")
    *_, older, newest = sorted((copy / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    then = in_process("eval", copy, "--episodes", 5, "--json")
    steps = str(int(older.name.removeprefix("step-")))
    assert in_process("eval", root / "a", "--episodes", 5, "--json", "--checkpoint", steps) == then
    assert json.loads(then[1].splitlines()[-1])["checkpoint"] == older.name


SMALL_PONG = [
    "dqn-pong", "env.num=1", "env.atari={size: 36}", "net.torso={kind: nature, hidden: [8]}", "threads=1",
    "stop.env_steps=8", "algo.learning_starts=8", "algo.capacity=400", "precision=float32",
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "noops", "sticky"), [("noop", 30, 0.0), ("sticky", 0, 0.25)])
def test_eval_with_an_atari_protocol(tmp_path, train_once, monkeypatch, in_process, protocol, noops, sticky):
    run = train_once(tmp_path, {"pong": SMALL_PONG})("pong")
    made, make = [], evaluation.make_env
    monkeypatch.setattr(evaluation, "make_env", lambda *given, **named: made.append(given[0]) or make(*given, **named))
    code, printed, complaint = in_process("eval", run, "--episodes", 1, "--protocol", protocol, "--json")
    assert code == 0, complaint
    result = json.loads(printed.splitlines()[-1])
    assert (result["protocol"], result["episodes"]) == (protocol, 1)
    assert -21 <= result["mean"] <= 21
    (settings,) = made
    atari = settings.atari
    assert (atari.noop_max, atari.sticky, atari.episodic_life) == (noops, sticky, False)


def test_branch_starts_from_the_given_checkpoint_in_the_given_folder(trained_run, tmp_path, in_process):
    root, _ = trained_run
    saved = sorted(int(path.name.removeprefix("step-")) for path in (root / "a" / "checkpoints").glob("step-*"))
    older, newest = saved[-2:]
    more = ["run=b", f"stop.env_steps={newest}", "log.every=10"]
    code, printed, complaint = in_process("resume", root / "a", *more, "--checkpoint", older, "--runs", tmp_path)
    assert code == 0, complaint
    assert f"run:      {tmp_path / 'b'}" in printed
    before, rows = (read_rows(RunFolder(run).metrics_file) for run in (root / "a", tmp_path / "b"))
    kept = [row for row in before if row["env_steps"] <= older]
    assert rows[: len(kept)] == kept
    assert [row["env_steps"] for row in rows[len(kept) :]] == list(range(older + 10, newest + 1, 10))
    assert not (root / "b").exists()


def test_resuming_a_finished_run_exits_at_once_with_a_message(trained_run, in_process):
    root, _ = trained_run
    before = RunFolder(root / "a").metrics_file.read_bytes()
    code, printed, _ = in_process("resume", root / "a")
    assert code == 0
    assert "stop.env_steps=1,500 reached" in printed
    assert f"starling resume {root / 'a'} stop.env_steps=3000\n" in printed
    assert RunFolder(root / "a").metrics_file.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "ppo-cartpol"], "unknown preset 'ppo-cartpol'; did you mean 'ppo-cartpole'"),
        (["train", "ppo-cartpole", "sede=1"], "unknown key 'sede'; did you mean 'seed'"),
        (["train", "ppo-cartpole", "env.id=CartPool-v1"], "CartPole-v1"),
        (["train", "impala-cartpole", "env.id=Pendulum-v1"], "impala needs a Discrete or MultiDiscrete action space"),
        (["train", "dqn-cartpole", "net.core.kind=lstm"], "dqn learns from single transitions"),
        (["train", "ppo-cartpole", "algo.minibatches=1000"], "algo.minibatches=1000 is more than"),
        (["train", "ppo-cartpole", "run=.."], "run: '..' cannot be used (name of the run's folder"),
        (["train", "ppo-cartpole", "device=abacus"], "device=abacus is not a device that torch knows"),
        (["train", "ppo-cartpole", "env.args.m=1"], "keyword argument 'm'; change or clear them"),
        (["train"], "missing argument 'PRESET|FILE' (see "),
        (["trian", "ppo-cartpole"], "no such command 'trian'; did you mean 'train'? (see "),
        (["train", "ppo-cartpole", "--fast"], "no such option: --fast (see "),
        (["eval", "no-such-run", "--episodes", "0"], "invalid value for '--episodes'"),
        (["verify-resume", "dqn-cartpole", "env.id=CartPool-v1"], "unknown environment 'CartPool-v1'"),
        (["resume", "no-such-run"], "no such run: no-such-run"),
        (["eval", "/"], "/ is not a run"),
        (["eval", "{run}", "--protocol", "sticky"], "protocol sticky is for ALE/ environments"),
        (["eval", "{run}", "--protocol", "noops"], "unknown protocol 'noops'; choose one of as-trained, noop, sticky"),
        (["train", "ppo-cartpole", "--runs", "/proc/nowhere"], "cannot write to /proc"),
        (["train", "ppo-cartpole", "--runs", "/etc/hostname"], "/etc/hostname is not a folder"),
        (["train", "dqn-cartpole", "env.id=Pendulum-v1"], "dqn needs a Discrete action space"),
    ],
)
def test_invalid_input_is_a_one_line_error_with_code_2_and_writes_nothing(
    trained_run, in_process, monkeypatch, arguments, message, tmp_path
):
    monkeypatch.chdir(tmp_path)
    code, printed, complaint = in_process(*(word.format(run=trained_run[0] / "a") for word in arguments))
    assert (code, printed) == (2, "")
    assert len(complaint.splitlines()) == 1
    assert complaint.startswith("error: ")
    assert message in complaint
    assert list(tmp_path.iterdir()) == []


def test_version_is_that_of_the_package(in_process):
    assert in_process("--version") == (0, f"starling {metadata.version('starling-rl')}\n", "")


def test_characters_that_the_encoding_lacks_are_escaped(trained_run, tmp_path, in_process, monkeypatch):
    run = shutil.copytree(trained_run[0] / "a", tmp_path / "ü")
    monkeypatch.setattr(sys, "stdout", open(1, "w", encoding="ascii", closefd=False))  # noqa: SIM115 (open to the end)
    code, printed, complaint = in_process("resume", run)
    assert (code, complaint) == (0, "")
    assert f"run:      {tmp_path}/\\xfc\n" in printed


def test_help_does_not_import_torch():
    script = """
        import sys
        from starling.cli.main import app
        app(["--help"], standalone_mode=False)
        assert "torch" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "verify-resume" in done.stdout


def test_preset_summaries_are_complete_sentences(in_process):
    rows = json.loads(in_process("presets", "--json")[1])
    assert [row["name"] for row in rows if not row["summary"].endswith(".")] == []


def test_error_in_the_settings_of_a_run_names_their_file(trained_run, tmp_path, in_process):
    root, _ = trained_run
    copy = RunFolder(shutil.copytree(root / "a", tmp_path / "a"))
    copy.config_file.write_text(copy.config_file.read_text() + "sede: 1\n")
    code, _, complaint = in_process("eval", copy.path)
    assert code == 2
    assert complaint == f"error: {copy.config_file}: unknown key 'sede'; did you mean 'seed'?\n"


def test_damaged_checkpoint_is_skipped_and_named(trained_run, tmp_path, in_process):
    root, _ = trained_run
    copy = shutil.copytree(root / "a", tmp_path / "a")
    newest = max((copy / "checkpoints").glob("step-*"))
    (newest / "learner.safetensors").write_bytes(b"")
    code, printed, complaint = in_process("eval", copy, "--episodes", 2)
    assert code == 0, complaint
    assert f"checkpoint skipped: {newest.name}: learner.safetensors has 0 bytes" in printed


def test_weights_of_another_network_are_a_clear_error(trained_run, tmp_path, in_process):
    root, _ = trained_run
    copy = RunFolder(shutil.copytree(root / "a", tmp_path / "a"))
    copy.config_file.write_text(copy.config_file.read_text().replace("- 256", "- 32"))
    code, _, complaint = in_process("eval", copy.path)
    assert code == 2
    assert "are those of another env or network" in complaint
    assert "heads.extrinsic.q.weight is (2, 256) there and (2, 32) in this configuration" in complaint


def test_ctrl_c_before_the_run_starts_exits_silently(tmp_path):
    (tmp_path / "late.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = starling("train", "ppo-cartpole", "env.id=late:make", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["late.py"]


def test_help_imports_nothing_slow():
    slow = (
        "import sys, starling.cli.main; print([m for m in ('torch', 'numpy', 'pydantic', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", slow], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_train_uses_a_folder_with_its_configuration_and_says_what_was_made_for_another_env(in_process, tmp_path):
    prepared = tmp_path / "models" / "myrun"
    prepared.mkdir(parents=True)
    settings = "net: {torso: {hidden: [8]}}\nstop: {env_steps: 64}\nalgo: {rollout: 2}\n"
    (prepared / "config.yaml").write_text(f"base: ppo-cartpole\nenv: {{id: Acrobot-v1}}\n{settings}")
    code, printed, _ = in_process("train", prepared / "config.yaml", "--runs", tmp_path / "models", "run=myrun")
    assert code == 0
    assert f"run: {prepared}\n" in printed
    assert "note: ppo-cartpole is made for CartPole-v1, and Acrobot-v1 takes over its stop.return=475, " in printed
    assert "note: ppo-cartpole is made" in (prepared / "log.txt").read_text()
    other = ["env.id=Acrobot-v1", "net.torso.hidden=[8]", f"init_from={prepared}"]
    code, printed, _ = in_process("config", "check", "ppo-cartpole", *other)
    assert code == 0
    assert printed.splitlines()[0].startswith("weights: ")
    assert printed.splitlines()[-2:][0].startswith("note: ppo-cartpole is made for CartPole-v1")
    assert printed.splitlines()[-1] == "ok"


@pytest.mark.parametrize("command", [["train", "dqn"], ["config", "check", "dqn"]])
def test_ids_that_cannot_be_had_are_one_line(in_process, command):
    code, printed, complaint = in_process(*command, "env.id=Pong-v4")
    assert (code, printed, complaint.count("\n")) == (2, "", 1)
    assert complaint.startswith("error: env.id: Pong-v4 repeats each action 2 to 4 times at random")
