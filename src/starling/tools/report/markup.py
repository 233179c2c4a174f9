"""Build HTML and SVG in which every text and every attribute is escaped.

Runs may come from a stranger: only `tag` makes `Markup`, and whatever is not `Markup` is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from starling.errors import escaped

_VOID = {"meta", "link", "input", "br", "img", "path", "line", "rect", "circle", "use"}
"""Elements without content; those of SVG are closed."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = Markup | str | int | float | None
Attribute = str | int | float | bool | None


def text(value: object) -> Markup:
    """Escape a text for content and for attributes; control characters and bidi marks become visible."""
    return Markup(html.escape(escaped(str(value)), quote=True))


def tag(name: str, /, *children: Child | Iterable[Child], **attributes: Attribute) -> Markup:
    """Build an element.

    Args:
        name: name of the element.
        children: content; strings are escaped, None is left out, and lists are flattened.
        attributes: attributes; `_` stands for `-`, a trailing one is dropped (`class_`). True writes the name alone;
            None and False leave it out.

    Returns:
        The element.
    """
    written = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child | Iterable[Child]) -> Markup:
    """Join children, escaping those that are not `Markup`."""
    return Markup("".join(_content(child) for child in children))


def _content(child: Child | Iterable[Child]) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return text(child)
    return join(*child)


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{text(value)}"'
