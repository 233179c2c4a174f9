"""The messages that worker processes send over their links, and the shape of each.

A link gives any JSON object; whoever handles one relies on its shape, so it is checked where it comes in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starling.runtime.link import BrokenMessageError

Shape = Callable[[Any], bool]


def _is(*kinds: type) -> Shape:
    return lambda value: isinstance(value, kinds)


def _list_of(item: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(item, value))


def _row_of(*items: Shape) -> Shape:
    """A list of exactly these."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(items)
        and all(item(part) for item, part in zip(items, value, strict=True))
    )


def _object_of(**items: Shape) -> Shape:
    """An object with exactly these keys."""
    return lambda value: (
        isinstance(value, dict) and value.keys() == items.keys() and all(items[key](value[key]) for key in items)
    )


_INT, _TEXT, _FLAG, _OBJECT = _is(int), _is(str), _is(bool), _is(dict)

_SHAPES = [
    _object_of(ready=_FLAG),
    _object_of(fault=_TEXT, kind=_TEXT, details=_TEXT),
    _object_of(fragment=_row_of(_INT, _INT, _INT, _INT)),  # group, slot, actor, sequence
    _object_of(given_back=_row_of(_INT, _list_of(_INT))),  # group, slots
    _object_of(episodes=_list_of(_row_of(_INT, _is(int, float), _INT))),  # row, return, length
    _object_of(dropped=_INT, notices=_list_of(_TEXT)),
    _object_of(evaluation=_OBJECT, state=_OBJECT),
    _object_of(update_priorities=_row_of(_INT, _FLAG, _INT)),  # slot, with priorities, version
    _object_of(formed=_INT),
    _object_of(waits=_object_of(standing=_row_of(_INT, _INT), late=_FLAG, why=_is(str, type(None)))),
    _object_of(told=_object_of(state=_INT)),
    _object_of(told=_object_of(metrics=_OBJECT)),
    _object_of(posted=_row_of(_INT, _TEXT, _TEXT)),  # rendezvous, key, value in base64
]


def check_message(message: dict[str, Any]) -> None:
    """Refuse what no worker sends.

    Raises:
        BrokenMessageError: The message is of no known shape.
    """
    if not any(shape(message) for shape in _SHAPES):
        raise BrokenMessageError(f"no message has the form {_excerpt(message)}")


def _excerpt(message: dict[str, Any]) -> str:
    text = repr(message)
    return text if len(text) <= 80 else f"{text[:77]}..."
