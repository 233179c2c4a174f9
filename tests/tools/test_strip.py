"""The strip with reward streams below a video, pixel by pixel."""

import numpy as np

from starling.tools.video_strip import BAND, Strip

WIDTH, BACKGROUND, GREEN, RED = 200, (24, 24, 24), (0, 158, 115), (213, 94, 0)
ZERO = 14 + 13  # below the name, in the middle


def test_one_bar_per_step_with_the_newest_at_the_right_scaled_to_the_largest():
    strip, image = Strip(), np.full((10, WIDTH, 3), 7, np.uint8)
    strip.add({"a": 2.0, "b": 0.0})
    strip.add({"a": -1.0, "b": 0.1})
    shown = strip.under(image, ("a", "b"))
    assert shown.shape == (10 + 2 * BAND, WIDTH, 3)
    assert (shown[:10] == 7).all()
    first, second = shown[10 : 10 + BAND], shown[10 + BAND :]
    assert colored(first[14:], GREEN) == (14 * 3 + 7 * 3, WIDTH - 7, WIDTH - 1)  # 13 up and 6 down, and zero itself
    assert tuple(first[ZERO + 6, WIDTH - 2]) == GREEN
    assert tuple(first[ZERO + 7, WIDTH - 2]) == BACKGROUND
    assert tuple(first[ZERO - 13, WIDTH - 6]) == GREEN
    assert tuple(first[ZERO - 13, WIDTH - 2]) == BACKGROUND
    assert colored(second[14:], RED) == (14 * 3, WIDTH - 3, WIDTH - 1)  # nothing for a reward of 0
    assert (first[:14] > 100).any()  # the name of the stream
    assert (first[:14] != second[:14]).any()


def test_older_bars_move_left_and_a_new_episode_clears_them():
    strip, image = Strip(), np.zeros((1, WIDTH, 3), np.uint8)
    for step in range(100):
        strip.add({"a": float(step == 0)})
        shown = strip.under(image, ("a",))
        if step < WIDTH // 4:
            assert colored(shown[15:], GREEN)[2] == WIDTH - 1 - 4 * step
        else:
            assert colored(shown[15:], GREEN)[0] == 0
    strip.add({"a": 1.0})
    strip.clear()
    assert colored(strip.under(image, ("a",))[15:], GREEN)[0] == 0


def colored(band, color):
    """The number of pixels with this color, and the first and last column that have some."""
    found = (band == color).all(-1)
    columns = np.flatnonzero(found.any(0))
    return int(found.sum()), *((int(columns[0]), int(columns[-1])) if len(columns) else (-1, -1))
