"""`config check`, `train`, `plan`, `resume`, and the Python API share one validation and its messages."""

import subprocess
import sys
import textwrap

import pytest

import starling
from starling.errors import UserError

REFUSED = [
    # names and arguments of optimizers and schedules
    ("ppo-cartpole", ["algo.optimizer.name=Adm"], "algo.optimizer.name: unknown optimizer 'Adm'; did you mean 'Adam'"),
    (
        "ppo-cartpole",
        ["algo.optimizer.name=LBFGS"],
        "algo.optimizer.name: optimizer LBFGS cannot be used: it",
    ),
    (
        "sac-pendulum",
        ["algo.actor_optimizer.name=SparseAdam"],
        "algo.actor_optimizer.name: optimizer SparseAdam",
    ),
    (
        "ppo-cartpole",
        ["algo.optimizer.schedule.name=ReduceLROnPlateau"],
        "ReduceLROnPlateau cannot be used: it",
    ),
    ("ppo-cartpole", ["algo.optimizer.schedule.name=None"], "unknown schedule 'None' (use one of ConstantLR, "),
    ("ppo-cartpole", ["algo.optimizer.schedule={name: StepLR}"], "schedule StepLR cannot be used with {}: TypeError"),
    ("ppo-cartpole", ["algo.optimizer.args.lrr=1"], "got an unexpected keyword argument 'lrr'"),
    ("ppo-cartpole", ["algo.optimizer.args.lr=-1"], "Invalid learning rate: -1"),
    ("ppo-cartpole", ["curiosity=[{kind: rnd, optimizer: {args: {lr: -1}}}]"], "Invalid learning rate: -1"),
    # invalid numbers, and numbers that cannot work
    ("ppo-cartpole", ["algo.optimizer.args.lr=.nan"], "algo.optimizer.args: lr must be a finite number, not nan"),
    ("ppo-cartpole", ["algo.optimizer.args.betas=[0.9, .inf]"], "args: betas.1 must be a finite number, not inf"),
    ("ppo-cartpole", ["env.args.length=-.inf"], "env.args: length must be a finite number, not -inf"),
    ("ppo-cartpole", ["env.wrappers=[{name: ClipReward, args: {max_reward: .inf}}]"], "max_reward must be a finite"),
    ("ppo-cartpole", ["net.torso.args.scale=.nan"], "net.torso.args: scale must be a finite number, not nan"),
    ("ppo-cartpole", ["algo.entropy_coef=.inf"], "algo.entropy_coef: must be a number, at least 0, not .inf"),
    ("ppo-cartpole", ["stop.return=.nan"], "stop.return: must be a number or null, not .nan"),
    ("ppo-cartpole", ["algo.clip=-0.1"], "algo.clip: start must be at least 0, not -0.1"),
    ("dqn-cartpole", ["algo.epsilon={start: 1, end: -1, steps: 9}"], "algo.epsilon: end must be from 0 to 1, not -1"),
    ("dqn-cartpole", ["algo.prioritized.beta=2"], "algo.prioritized.beta: start must be from 0 to 1, not 2"),
    ("ppo-cartpole", ["ray.actor.resources={gpu: -1}"], "ray.actor.resources.gpu: must be at least 0, not -1"),
    ("ppo-cartpole", ["threads=100000000"], "threads: must be at most 1,024, not 100000000 (more threads than cores"),
    (
        "ppo-cartpole",
        ["actors=100000", "env.num=100000"],
        "actors: must be at most 4,096, not 100000 (each has its own",
    ),
    ("ppo-cartpole", ["algo.epochs=1000000000"], "must be at most 1,000, not 1000000000 (stop conditions and signals"),
    ("ppo-cartpole", ["algo.epochs=1000", "algo.minibatches=500"], "are 500,000 optimizer steps in one update"),
    ("dqn-cartpole", ["algo.epsilon=7"], "algo.epsilon: start must be from 0 to 1, not 7"),
    ("ppo-cartpole", ["stop.minutes=1e30"], "stop.minutes: must be at most 10,000,000, not 1.0e+30 (that is 19 years)"),
    ("ppo-cartpole", ["seed=1e308"], "seed: must be below 2,147,483,648, not 1.0e+308"),
    ("dqn-cartpole", ["algo.batch=1e308"], "algo.batch: must be at most 1,000,000,000, not 1.0e+308 (no memory holds"),
    ("ppo-cartpole", ["stop.env_steps=-1e30"], "stop.env_steps: must be at least 1, not -1.0e+30"),
    ("ppo-cartpole", ["seed=true"], "seed: must be an integer, at least 0, below 2,147,483,648, not true"),
    ("ppo-cartpole", ["algo.entropy_coef=false"], "algo.entropy_coef: must be a number, at least 0, not false"),
    ("ppo-cartpole", ["stop.minutes=true"], "stop.minutes: must be a number, above 0, or null, not true"),
    ("ppo-cartpole", ["net.torso.hidden=[64, true]"], "net.torso.hidden: must be a list of integers, above 0, or null"),
    ("ppo-cartpole", ["ray.actor.resources={gpu: true}"], "ray.actor.resources: must be keys and numbers, at least 0"),
    ("ppo-cartpole", ["algo.optimizer.args.lr=nan"], "algo.optimizer.args: lr must be a number, not 'nan'"),
    ("ppo-cartpole", ["algo.optimizer.args.lr=true"], "algo.optimizer.args: lr must be a number, not true"),
    ("ppo-cartpole", ["algo.optimizer.args.betas=[0.9, x]"], "algo.optimizer.args: betas must be a number, not 'x'"),
    (
        "ppo-cartpole",
        ["algo.optimizer.schedule={name: LinearLR, args: {total_iters: -1}}"],
        "algo.optimizer.schedule.args: total_iters must be at least 0, not -1",
    ),
    ("ppo-cartpole", ["device=meta"], "device=meta is not a device to train on; use auto, cpu, cuda or cuda:1"),
    ("ppo-cartpole", ["seed=" + "9" * 5000], "is not valid YAML: a value of 5,000 characters; at most 4,096 can be"),
    ("ppo-cartpole", ["env.args=&a {b: *a}"], "the alias *a is inside its own anchor"),
    ("ppo-cartpole", ["env.args.x=${env:STARLING_NO_SUCH}"], "the environment variable STARLING_NO_SUCH is not set"),
    ("ngu-deepsea", ["env.args.size=1000000"], "toy/deep-sea: size must be an integer from 1 to 1,000, not 1000000"),
    ("ngu-deepsea", ["env.args.size=0"], "toy/deep-sea: size must be an integer from 1 to 1,000, not 0"),
    ("ngu-deepsea", ["env={id: toy/rooms, args: {rooms: -1}}"], "toy/rooms: rooms must be an integer from 1 to 30"),
    ("ppo-cartpole", ["env.id=toy/identity", "env.args.n=1000000000000000"], "does not fit into memory (numpy"),
    # settings that exclude each other
    ("dqn-cartpole", ["algo.fragment=1000000"], "a fragment of 1,000,000 steps does not fit into a capacity of "),
    ("ngu-deepsea", ["curiosity=[{kind: rnd}]"], "NGU has intrinsic rewards of its own: leave out curiosity"),
    ("sac-pendulum", ["curiosity=[{kind: rnd}]"], "sac learns from the environment's reward alone"),
    ("sac-pendulum", ["curiosity=[{kind: icm}]"], "leave out curiosity"),
    ("ppo-cartpole", ["env.id=toy/match", "curiosity=[{kind: icm}]"], "curiosity icm needs a Discrete action space"),
    ("ppo-cartpole", ["algo.minibatches=1000"], "algo.minibatches=1000 is more than the batch's 512 steps"),
    ("ppo-cartpole", ["actors=100"], "actors=100 is more than the env.num=16 envs they share"),
    ("ppo-cartpole", ["learners=3", "actors=2"], "actors=2 is less than learners=3, which need one each"),
    ("dqn-cartpole", ["runtime=ray", "env.num=2", "ray.shards=3"], "ray.shards=3 is more than the "),
    ("ppo-cartpole", ["env.stagger=10"], "env 'CartPole-v1' cannot reset single envs; set env.stagger=0"),
    ("dqn-cartpole", ["algo.capacity=10"], "table 'replay': "),
    ("dqn-cartpole", ["net.core.kind=lstm"], "dqn learns from single transitions"),
    ("r2d2-cartpole", ["net.core.kind=none"], "r2d2 is recurrent: set net.core"),
    # environments, networks, the machine
    ("ppo-cartpole", ["env.id=CartPool-v1"], "unknown environment 'CartPool-v1'; did you mean 'CartPole-v1'"),
    ("ppo-cartpole", ["env.id=Ant-v2"], "env 'Ant-v2' cannot be made with the installed packages"),
    ("ppo-cartpole", ["env.id=phys2d/CartPole-v1"], "needs the package jax: pip install 'gymnasium[jax]'"),
    ("ppo-cartpole", ["env.id=no_such_module:make"], "cannot import 'no_such_module:make'"),
    ("ppo-cartpole", ["env.args.m=1"], "does not accept env.args: "),
    ("ppo-cartpole", ["env.wrappers=[{name: TimeLimitt}]"], "unknown wrapper 'TimeLimitt'; did you mean 'TimeLimit'?"),
    ("ppo-cartpole", ["env.wrappers=[{name: TimeLimit}]"], "wrapper 'TimeLimit' does not accept its arguments"),
    ("dqn-cartpole", ["env.id=Pendulum-v1"], "dqn needs a Discrete action space; Pendulum-v1 has a Box"),
    (
        "impala-cartpole",
        ["env.id=toy/match"],
        "impala needs a Discrete or MultiDiscrete action space; toy/match has a Box",
    ),
    ("ppo-cartpole", ["net.torso.kind=nature"], "torso.kind=nature needs an image"),
    ("ppo-cartpole", ["net.core.kind=lsmt"], "unknown core 'lsmt'; did you mean 'lstm'"),
    ("ppo-cartpole", ["device=abacus"], "device=abacus is not a device that torch knows"),
    # several errors at once
    ("ppo-cartpole", ["sede=1", "algo.clip=-1", "algo.optimizer.name=Adm"], "unknown key 'sede'"),
    ("ppo-cartpole", ["algo=pppo"], "algo: must be a section, not 'pppo'; did you mean algo.name=ppo?"),
    ("ppo-cartpole", ["algo=zzzzzz"], "algo: must be a section, not 'zzzzzz'; name an algorithm, e.g. algo.name=ppo"),
    ("ppo-cartpole", ["algo.optimizer=adamm"], "did you mean algo.optimizer.name=Adam?"),
    ("ppo-cartpole", ["net.torso=zzzzzz"], "not 'zzzzzz'\n"),
]


@pytest.mark.parametrize(("preset", "settings", "message"), REFUSED)
def test_check_rejects_the_same_as_train_plan_and_the_api(in_process, tmp_path, preset, settings, message):
    code, printed, lines = in_process("config", "check", preset, *settings)
    assert (code, printed) == (2, "")
    assert message in lines
    assert len(lines.splitlines()) == (3 if "sede=1" in settings else 1)
    assert in_process("train", preset, *settings, "--runs", tmp_path) == (code, printed, lines)
    assert in_process("plan", preset, *settings, "--runs", tmp_path) == (code, printed, lines)
    with pytest.raises(UserError) as caught:
        starling.train(preset, settings, runs=tmp_path)
    assert str(caught.value).splitlines() == [line.removeprefix("error: ") for line in lines.splitlines()]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("preset", ["dqn-cartpole", "ppo-cartpole"])
def test_check_and_train_reject_the_same_replay(in_process, tmp_path, preset):
    refused = in_process("config", "check", preset, f"replay_from={tmp_path}")
    assert refused[0] == 2
    assert len(refused[2].splitlines()) == 1
    assert in_process("train", preset, f"replay_from={tmp_path}", "--runs", tmp_path / "runs") == refused


def test_check_needs_ray_if_train_does():
    script = """
        import sys
        sys.modules["ray"] = None
        from starling.cli.main import app
        from starling.errors import UserError
        for command in (["config", "check"], ["train"]):
            try:
                app([*command, "dqn-cartpole", "runtime=ray"], standalone_mode=False)
            except UserError as error:
                print(error)
        app(["config", "check", "dqn-cartpole"], standalone_mode=False)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.stdout == "runtime=ray needs Ray: pip install 'starling-rl[ray]'\n" * 2 + "ok\n", done.stderr


@pytest.fixture(scope="module")
def trained(train_once, tmp_path_factory):
    settings = ["dqn-cartpole", "stop.env_steps=300", "algo.learning_starts=200", "algo.capacity=1000"]
    return train_once(tmp_path_factory.mktemp("runs"), {"mine": settings})("mine")


@pytest.mark.parametrize(
    "setting",
    [
        "algo.optimizer.name=LBFGS",
        "algo.optimizer.args.lr=-1",
        "algo.optimizer.args.lr=.nan",
        "algo.optimizer.schedule={name: StepLR, args: {step_size: 0}}",
        "algo.epsilon=-1",
        "actors=100",
        "algo.capacity=10",
    ],
)
def test_check_and_resume_reject_the_same_settings(in_process, trained, setting):
    refused = in_process("config", "check", trained, setting)
    assert refused[0] == 2
    assert len(refused[2].splitlines()) == 1
    assert in_process("resume", trained, setting) == refused
    assert [path.name for path in trained.parent.iterdir()] == ["mine"]


def test_fault_of_a_user_env_is_shown_in_the_same_way(in_process, tmp_path, monkeypatch):
    (tmp_path / "raising_env.py").write_text("def make():\n    raise RuntimeError('no such level')\n")
    monkeypatch.syspath_prepend(tmp_path)
    shown = in_process("config", "check", "ppo-cartpole", "env.id=raising_env:make")
    assert shown[0] == 1
    assert "raised in construction: RuntimeError: no such level" in shown[2].splitlines()[-1]
    assert in_process("train", "ppo-cartpole", "env.id=raising_env:make", "--runs", tmp_path / "runs") == shown


def test_typos_are_reported_without_importing_torch():
    script = """
        import sys
        import pytest
        from starling.cli.main import app
        from starling.errors import UserError
        for setting in [
            "sede=1", "algo.optimizer.name=LBFGS", "algo.optimizer.name=Adm", "algo.optimizer.args.lr=.nan",
            "algo.optimizer.schedule.name=ReduceLROnPlateau", "algo.clip=-1", "env.id=CartPool-v1", "env.id=Ant-v2",
            "env.id=toy/memry", "env.id=ALE/Pung-v5", "env.id=MinAtar/Breakot-v1", "env.id=MiniGrid-Empty-5x5-v0",
        ]:
            for command in (["config", "check"], ["train"], ["plan"]):
                with pytest.raises(UserError):
                    app([*command, "ppo-cartpole", setting], standalone_mode=False)
                assert "torch" not in sys.modules, setting
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
