"""From Python: train, load, act, register."""

import gymnasium
import numpy as np
import pytest

import starling
from starling.envs.toy import Identity

TINY = ["stop.env_steps=400", "stop.return=null", "net.torso.hidden=[16]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = [*TINY, "env.num=2", "algo.rollout=16", "net.core={kind: lstm, size: 8}", "net.inputs=[action, reward]"]
    return starling.train("ppo-cartpole", settings, runs=tmp_path_factory.mktemp("runs"))


def test_train_says_how_it_ended(run):
    assert run.env_steps >= 400
    assert run.updates > 5
    assert run.exit_code == 0
    assert (run.folder / "metrics.jsonl").exists()
    assert starling.resume(run.folder).env_steps == run.env_steps


def test_a_loaded_agent_plays_and_remembers(run):
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


def test_exploring_depends_on_the_seed_and_not_on_a_global_generator(run):
    agent = starling.load(run.folder)
    obs = np.zeros(4, np.float32)
    drawn = [int(agent.act(obs, explore=True, seed=seed)[0]) for seed in range(20)]
    assert drawn == [int(agent.act(obs, explore=True, seed=seed)[0]) for seed in range(20)]
    assert set(drawn) == {0, 1}


def test_own_parts_by_name(tmp_path):
    starling.register_env("api/identity", Identity)
    starling.register_wrapper("api-flat", gymnasium.wrappers.FlattenObservation)
    settings = [*TINY, "env={id: api/identity, num: 2, wrappers: [{name: api-flat}]}"]
    assert starling.train("ppo-cartpole", settings, runs=tmp_path).env_steps >= 400


def test_a_dict_is_a_configuration_too(tmp_path):
    settings = {
        "algo": {"name": "ppo", "rollout": 16},
        "env": {"id": "toy/identity", "num": 2},
        "stop": {"env_steps": 64},
    }
    assert starling.train(settings, runs=tmp_path).env_steps == 64
    with pytest.raises(starling.UserError, match="unknown key 'sede'"):
        starling.train({**settings, "sede": 1}, runs=tmp_path)
    with pytest.raises(ValueError, match="overrides go with"):
        starling.train(settings, ["seed=1"], runs=tmp_path)
