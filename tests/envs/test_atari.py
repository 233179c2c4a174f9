import numpy as np
import pytest
from gymnasium.vector import VectorEnv as GymVectorEnv

from starling.config.env import EnvConfig
from starling.envs.atari import LifeEpisodes, SingleAtari
from starling.envs.catalog import atari_games
from starling.envs.registry import env_spec, make_env
from starling.envs.vector import GAME_OVER, seeds_int32


def make(id, num_envs=1, vectorize="auto", **atari):
    return make_env(EnvConfig(id=id, atari=atari, vectorize=vectorize), num_envs)


def test_rewards_are_raw_scores():
    env = make("ALE/SpaceInvaders-v5", num_envs=2)
    env.reset(np.array([1, 2]))
    rng = np.random.default_rng(0)
    rewards = {float(r) for _ in range(100) for r in env.step(rng.integers(6, size=2)).reward}
    assert max(rewards) >= 5
    assert all(r % 5 == 0 for r in rewards)


def test_frames_slide_through_the_stack():
    env = make("ALE/Pong-v5", num_envs=2)
    old = env.reset(np.array([1, 2])).obs
    assert not old[:, :3].any()
    assert old[:, 3].any()
    rng = np.random.default_rng(0)
    for _ in range(6):
        new = env.step(rng.integers(6, size=2)).obs
        np.testing.assert_array_equal(new[:, :3], old[:, 1:])
        old = new
    assert (new[:, 3] != new[:, 2]).any()


def test_frame_limit_truncates():
    env = make("ALE/Pong-v5", max_frames=24)
    env.reset(np.array([1]))
    steps = [env.step(np.array([0])) for _ in range(8)]
    assert [bool(s.truncated[0]) for s in steps] == [False] * 5 + [True, False, False]
    assert not any(s.terminated[0] for s in steps)


@pytest.mark.parametrize("vectorize", ["auto", "sync"])
def test_lost_life_ends_the_episode_but_not_the_game(vectorize):
    env = make("ALE/Breakout-v5", vectorize=vectorize, episodic_life=True, noop_max=0)
    env.reset(np.array([0]))
    lives, ended, seen = 5, False, []
    for t in range(400):
        step = env.step(np.array([1 if t % 3 else 2]))  # FIRE, and move right
        lives_left = int(env.infos["lives"][0])
        if step.terminated[0]:
            seen.append((lives_left, bool(env.game_over[0])))
        if ended and not env.game_over[0]:
            assert (bool(step.first[0]), bool(step.valid[0])) == (True, False)
            assert lives_left == (lives or 5)
        ended, lives = bool(step.terminated[0]), lives_left
        if len(seen) == 6:
            break
    assert seen == [(4, False), (3, False), (2, False), (1, False), (0, True), (4, False)]


class ScriptedLives(GymVectorEnv):
    """One env that replays (lives, terminated, truncated) and records its actions."""

    num_envs = 1

    def __init__(self, script):
        self.script, self.actions = list(script), []

    def reset(self, *, seed=None, options=None):
        return np.zeros(1), {"lives": np.array([3])}

    def step(self, actions):
        self.actions.append(int(actions[0]))
        lives, terminated, truncated = self.script.pop(0)
        return np.zeros(1), np.ones(1), np.array([terminated]), np.array([truncated]), {"lives": np.array([lives])}


NO, LIFE, GAME, TRUNCATED = (False,) * 3, (True, False, False), (True, False, True), (False, True, True)


@pytest.mark.parametrize(
    ("script", "ends", "actions"),
    [
        # a life is lost, and another one during the following no-op: one episode end
        ([(3, 0, 0), (2, 0, 0), (1, 0, 0), (1, 0, 0)], [NO, LIFE, NO, NO], [7, 7, 0, 7]),
        # no lives left, but the game goes on for one step: only its end counts
        ([(1, 0, 0), (1, 0, 0), (0, 0, 0), (0, 1, 0)], [LIFE, NO, NO, GAME], [7, 0, 7, 7]),
        # a life is lost at the step that truncates the game: this counts as truncation
        ([(3, 0, 0), (2, 0, 1), (3, 0, 0)], [NO, TRUNCATED, NO], [7, 7, 7]),
    ],
)
def test_which_lost_lives_end_an_episode(script, ends, actions):
    scripted = ScriptedLives([(lives, bool(term), bool(trunc)) for lives, term, trunc in script])
    env = LifeEpisodes(scripted)
    env.reset()
    outcomes = []
    for _ in script:
        _, _, terminated, truncated, infos = env.step(np.array([7]))
        outcomes.append((bool(terminated[0]), bool(truncated[0]), bool(infos[GAME_OVER][0])))
    assert outcomes == ends
    assert scripted.actions == actions


def test_without_episodic_life_only_the_end_of_the_game_ends_the_episode():
    env = make("ALE/Breakout-v5", noop_max=0)
    env.reset(np.array([0]))
    for t in range(400):
        step = env.step(np.array([1 if t % 3 else 2]))
        if step.terminated[0]:
            break
    assert env.episode_infos()[0]["lives"] == 0
    assert env.game_over[0]


def test_fire_reset_starts_the_game():
    """Without FIRE the ball of Breakout never appears."""
    lives = {}
    for fire in (False, True):
        env = make("ALE/Breakout-v5", fire_reset=fire, noop_max=0)
        env.reset(np.array([0]))
        for _ in range(50):
            env.step(np.array([0]))
        lives[fire] = int(env.infos["lives"][0])
    assert lives == {False: 5, True: 4}


def test_settings_determine_the_spaces():
    spec = env_spec(
        EnvConfig(id="ALE/Pong-v5", atari={"size": 42, "stack": 2, "grayscale": False, "full_actions": True})
    )
    assert spec.observation.shape == (2, 42, 42, 3)
    assert spec.action.n == 18
    assert env_spec(EnvConfig(id="ALE/MsPacman-v5")).action.n == 9


def test_ids_are_those_of_gymnasium():
    import gymnasium

    assert set(atari_games()) == {id for id in gymnasium.registry if id.startswith("ALE/")}


def test_seeds_are_mapped_to_distinct_int32():
    seeds = np.array([0, 1, 2**31, 2**31 + 1, 2**62 + 12345, 2**63 - 1])
    folded = seeds_int32(seeds)
    assert ((folded >= 0) & (folded < 2**31)).all()
    assert len(set(folded.tolist())) == len(seeds)
    np.testing.assert_array_equal(seeds_int32(seeds[::-1]), folded[::-1])


def test_ale_does_not_modify_the_base_class_of_gymnasium():
    make("ALE/Pong-v5").close()
    assert "autoreset_mode" not in GymVectorEnv.metadata


@pytest.mark.parametrize("lives", [False, True])
def test_stagger_truncates_each_env_separately(lives):
    env = make("ALE/Breakout-v5", num_envs=3, episodic_life=lives)
    env.reset(np.array([1, 2, 3]))
    env.stagger(np.array([0, 3, 1]))
    steps = [env.step(np.array([1, 1, 1])) for _ in range(6)]
    assert np.array([s.truncated for s in steps]).T.astype(int).tolist() == [
        [0] * 6,
        [0, 0, 1, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
    ]
    assert np.array([s.first for s in steps]).T.astype(int).tolist() == [
        [0] * 6,
        [0, 0, 0, 1, 0, 0],
        [0, 1, 0, 0, 0, 0],
    ]
    assert not steps[1].obs[2, :3].any()  # a new game has no frames before its first one
    assert steps[1].obs[0, :3].any()


def test_image_is_in_color_at_the_consoles_resolution_and_shows_the_game_of_the_observation():
    """Over lives, games, and resets without a seed, with sticky actions: both games stay the same one."""
    opencv = pytest.importorskip("cv2")
    settings = {"sticky": 0.25, "episodic_life": True, "fire_reset": True}
    env = SingleAtari(EnvConfig(id="ALE/Breakout-v5", atari=settings), "rgb_array")
    rng, ends = np.random.default_rng(0), 0
    obs, _ = env.reset(seed=3)
    for _ in range(600):
        image = env.render()
        assert (image.shape, image.dtype) == ((210, 160, 3), np.uint8)
        gray = opencv.resize(opencv.cvtColor(image, opencv.COLOR_RGB2GRAY), (84, 84), interpolation=opencv.INTER_AREA)
        np.testing.assert_array_equal(gray, obs[-1])
        assert np.ptp(image.astype(int), axis=-1).max() > 100
        obs, _, terminated, truncated, _ = env.step(rng.integers(env.action_space.n))
        if terminated or truncated:
            ends += 1
            obs, _ = env.reset()
    assert ends > 5
    env.close()
    assert SingleAtari(EnvConfig(id="ALE/Breakout-v5"), None).render() is None
