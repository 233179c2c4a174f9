import pytest
import torch

from starling.ops.shapes import check_shapes


def zeros(*shape):
    return torch.zeros(shape)


def test_equal_shapes_pass():
    check_shapes("op", a=(zeros(5, 4), "T B"), b=(zeros(5, 4), "T B"), q=(zeros(6, 4, 3), "T+1 B A"), c=(zeros(4), "B"))
    check_shapes("op", q=(zeros(5, 4, 3), "... A"), a=(zeros(5, 4), "..."))
    check_shapes("op", q=(zeros(3), "... A"), a=(zeros(), "..."))
    check_shapes("op", noise=(zeros(7, 2), "B 2"), number=(0.5, "B"), nothing=(None, "B"))


@pytest.mark.parametrize(
    ("named", "line"),
    [
        (
            {"r_t": (zeros(5, 4), "T B"), "v_tp1": (zeros(5, 3), "T B")},
            "gae: v_tp1 has shape (5, 3), expected [T, B] = (5, 4) as r_t",
        ),
        (
            {"r_t": (zeros(5, 4), "T B"), "v_t": (zeros(5, 4, 1), "T B")},
            "gae: v_t has shape (5, 4, 1), expected [T, B] = (5, 4) as r_t",
        ),
        (
            {"r_t": (zeros(5, 4), "T B"), "q": (zeros(5, 4, 3), "T+1 B A")},
            "gae: q has shape (5, 4, 3), expected [T+1, B, A] = (6, 4, A) as r_t",
        ),
        ({"r_t": (zeros(5, 4), "T B"), "v": (zeros(5), "B")}, "gae: v has shape (5,), expected [B] = (4,) as r_t"),
        ({"r_t": (zeros(5), "T B")}, "gae: r_t has shape (5,), expected [T, B]"),
        (
            {"q": (zeros(5, 4, 3), "... A"), "action": (zeros(5, 4, 1), "...")},
            "gae: action has shape (5, 4, 1), expected [...] = (5, 4) as q",
        ),
        (
            {"q": (zeros(7, 3), "B A"), "noise": (zeros(7, 1), "B 2")},
            "gae: noise has shape (7, 1), expected [B, 2] = (7, 2) as q",
        ),
        (
            {"a": (zeros(3), "T"), "b": (zeros(4), "B"), "c": (zeros(3, 5), "T B")},
            "gae: c has shape (3, 5), expected [T, B] = (3, 4) as a and b",
        ),
    ],
)
def test_wrong_shape_is_a_one_line_error(named, line):
    with pytest.raises(ValueError, match="gae") as caught:
        check_shapes("gae", **named)
    assert str(caught.value) == line
