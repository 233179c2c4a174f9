"""The Python API: train, load, act, register."""

import gymnasium
import numpy as np
import pytest
import torch

import starling
from starling.actor.noise import Noise
from starling.config.load import from_dict
from starling.envs.toy import Identity
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.tools.evaluate import load_agent
from starling.types import Progress

TINY = ["stop.env_steps=400", "stop.return=null", "net.torso.hidden=[16]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = [*TINY, "env.num=2", "algo.rollout=16", "net.core={kind: lstm, size: 8}", "net.inputs=[action, reward]"]
    return starling.train("ppo-cartpole", settings, runs=tmp_path_factory.mktemp("runs"))


def test_train_returns_steps_updates_and_exit_code(run):
    assert run.env_steps >= 400
    assert run.updates > 5
    assert run.exit_code == 0
    assert (run.folder / "metrics.jsonl").exists()
    assert starling.resume(run.folder).env_steps == run.env_steps


def test_loaded_agent_plays_an_episode_with_recurrent_state(run):
    agent = starling.load(run.folder)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    state, actions, ended = None, [], False
    reward = 0.0
    while not ended:
        action, state = agent.act(obs, state, reward=reward)
        actions.append(int(action))
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    assert state.step == len(actions)
    assert (state.carry["state"]["policy"]["h"] != 0).any()
    again, _ = agent.act(env.reset(seed=0)[0])
    assert int(again) == actions[0]


def test_exploration_depends_only_on_its_seed(run):
    agent = starling.load(run.folder)
    obs = np.zeros(4, np.float32)
    actions = [int(agent.act(obs, explore=True, seed=seed)[0]) for seed in range(20)]
    assert actions == [int(agent.act(obs, explore=True, seed=seed)[0]) for seed in range(20)]
    assert set(actions) == {0, 1}


EXPLORERS = {
    "dqn": [
        "dqn-cartpole",
        "stop.env_steps=400",
        "algo.learning_starts=100",
        "algo.epsilon={start: 1, end: 0, steps: 500}",
    ],
    "sac": ["sac-pendulum", "stop.env_steps=200", "algo.learning_starts=100", "env.num=2", "algo.batch=32"],
}


@pytest.fixture(scope="module")
def explorer(tmp_path_factory, train_once):
    return train_once(tmp_path_factory.mktemp("explorers"), EXPLORERS)


@pytest.mark.parametrize("name", EXPLORERS)
def test_loaded_agent_has_the_training_progress_of_its_checkpoint(explorer, name):
    run = explorer(name)
    row = read_rows(RunFolder(run).metrics_file)[-1]
    assert row["updates"] > 0
    trained = load_agent(run, which="newest", protocol="as-trained", warn=pytest.fail)
    for explore in (False, True):
        policy = trained.policy(explore=explore)
        assert policy.progress == Progress(row["env_steps"], row["updates"], 1.0)
        assert policy.explore == explore


def test_loaded_dqn_explores_with_the_epsilon_of_its_checkpoint(explorer):
    """Epsilon is 0.2 after 400 of 500 steps: 10% of the actions differ from the greedy one (of two), not 50%."""
    agent = starling.load(explorer("dqn"))
    obs = np.array([0.01, 0.5, 0.02, -0.4], np.float32)
    greedy = agent.act(obs)[0]
    actions = [agent.act(obs, explore=True, seed=seed)[0] for seed in range(1000)]
    assert 0.06 < np.mean(np.array(actions) != greedy) < 0.14


def test_loaded_sac_agent_explores_by_sampling_its_policy(explorer):
    run = explorer("sac")
    agent = starling.load(run)
    model = load_agent(run, which="newest", protocol="as-trained", warn=pytest.fail).model
    obs, high = np.array([0.6, 0.8, 1.5], np.float32), 2.0  # Pendulum's torque limit
    policy = model.policy(torch.from_numpy(obs[None]), torch.ones(1, dtype=torch.bool))
    for seed in range(5):
        noise = torch.from_numpy(Noise(seed, np.zeros(1, np.int64)).uniform(0, 1))
        expected = high * policy.sample(noise).detach().numpy()[0]
        np.testing.assert_allclose(agent.act(obs, explore=True, seed=seed)[0], expected, rtol=1e-5)


def test_registered_env_and_wrapper_are_used_by_name(tmp_path):
    starling.register_env("api/identity", Identity)
    starling.register_wrapper("api-flat", gymnasium.wrappers.FlattenObservation)
    settings = [*TINY, "env={id: api/identity, num: 2, wrappers: [{name: api-flat}]}"]
    assert starling.train("ppo-cartpole", settings, runs=tmp_path).env_steps >= 400


def test_train_accepts_a_dict(tmp_path):
    settings = {
        "algo": {"name": "ppo", "rollout": 16},
        "env": {"id": "toy/identity", "num": 2},
        "stop": {"env_steps": 64},
    }
    assert starling.train(settings, runs=tmp_path).env_steps == 64
    with pytest.raises(starling.UserError, match="unknown key 'sede'"):
        starling.train({**settings, "sede": 1}, runs=tmp_path)
    with pytest.raises(ValueError, match="overrides go with"):
        starling.train(from_dict(settings), ["seed=1"], runs=tmp_path)


def test_overrides_change_a_dict(tmp_path):
    settings = {"algo": {"name": "ppo", "rollout": 16}, "env": {"id": "toy/identity", "num": 2}}
    result = starling.train(settings, ["stop.env_steps=64", "algo.rollout=32", "run=short"], runs=tmp_path)
    assert (result.env_steps, result.updates, result.folder) == (64, 1, tmp_path / "short")
    assert settings["algo"] == {"name": "ppo", "rollout": 16}  # not changed in place
    with pytest.raises(starling.UserError, match=r"unknown key 'algo\.rolout'"):
        starling.train(settings, ["algo.rolout=32"], runs=tmp_path)


def test_print_display_prints_messages_and_a_line_per_row(tmp_path, capsys):
    settings = {"algo": {"name": "ppo", "rollout": 16}, "env": {"id": "toy/identity", "num": 2}}
    limits = ["stop.env_steps=96", "log.every=32", "run=shown"]
    starling.train(settings, limits, runs=tmp_path, display=starling.PrintDisplay())
    first, *rows = capsys.readouterr().out.splitlines()
    assert first == f"run: {tmp_path / 'shown'}"
    assert [row.split(" env steps")[0].strip() for row in rows] == ["32", "64", "96"]
    assert all("return" in row and "steps/s" in row for row in rows)
    assert "entropy" in rows[-1]  # the first row may come before the first update
