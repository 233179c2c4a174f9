import numpy as np
import pytest

from starling.envs.minatar import MinAtarEnv, make


@pytest.mark.parametrize(
    ("id", "actions", "channels"),
    [("MinAtar/Breakout-v1", 3, 4), ("MinAtar/Breakout-v0", 6, 4), ("MinAtar/Seaquest-v1", 6, 10)],
)
def test_spaces_of_each_game(id, actions, channels):
    env = make(id, {})
    assert env.action_space.n == actions
    obs, _ = env.reset(seed=0)
    assert (obs.shape, obs.dtype, set(np.unique(obs))) == ((channels, 10, 10), np.uint8, {0, 1})
    assert make(id, {"minimal_actions": False}).action_space.n == 6


def test_channels_have_the_order_of_the_game():
    env = MinAtarEnv("breakout")
    obs, _ = env.reset(seed=0)
    paddle, ball, _, brick = obs
    assert np.argwhere(paddle).tolist() == [[9, 4]]
    assert np.argwhere(ball)[0].tolist() in ([3, 0], [3, 9])
    assert brick[1:4].all()
    assert brick.sum() == 30


def test_minimal_actions_are_mapped():
    env = MinAtarEnv("breakout", sticky=0.0)
    env.reset(seed=0)
    columns = [np.argwhere(env.step(action)[0][0])[0, 1] for action in (0, 1, 1, 2)]
    assert columns == [4, 3, 2, 3]


def test_reset_clears_the_last_action():
    env = MinAtarEnv("breakout", sticky=0.999999)
    env.reset(seed=0)
    env._game.last_action = 1
    env.reset(seed=0)
    obs, *_ = env.step(2)
    # Sticky repeats the no-op at the start, not the move left before the reset.
    assert np.argwhere(obs[0]).tolist() == [[9, 4]]


def test_env_can_be_reset_without_a_seed():
    env = MinAtarEnv("freeway")
    assert env.reset()[0].shape == (7, 10, 10)


def test_rendered_image_shows_the_grid():
    env = MinAtarEnv("breakout", render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    assert image.shape == (160, 160, 3)
    bricks, empty = image[16:64].reshape(-1, 3), image[80:140].reshape(-1, 3)
    assert len(np.unique(bricks, axis=0)) == 1
    assert bricks[0].any()
    assert not empty.any()
