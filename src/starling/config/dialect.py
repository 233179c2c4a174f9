"""The YAML dialect of configuration files."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from starling.errors import UserError, cut, escaped, quoted

MAX_CHARACTERS = 262_144
"""Maximum characters of a file; the largest preset has 2,000."""
MAX_NODES = 10_000
"""Maximum number of keys, values, and lists in a file; an alias counts as all nodes of its anchor."""
MAX_DEPTH = 32
"""Maximum nesting depth of sections and lists."""
MAX_TEXT = 4096
"""Maximum characters of one key or value: the longest path that Linux accepts."""
MAX_DIGITS = 40
"""Maximum characters of one integer; the largest of 128 bits has 39."""

_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")

_SURROGATE = re.compile("[\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, a date is text, and keys are unique; size and depth are limited.

    An alias counts as all nodes of its anchor, so that a few lines cannot expand to billions of values, and it must not
    be inside its own anchor.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._depth = self._deepest = 0
        self._sizes: dict[str, tuple[int, int] | None] = {}  # nodes and depth of each anchor; None: still open

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self._sizes:
                self._count_alias(event)
            return super().compose_node(parent, index)
        before, deepest, anchor = self._nodes, self._deepest, event.anchor
        self._depth += 1
        self._deepest = self._depth
        self._count(1, self._depth, event)
        if anchor is not None and anchor not in self._sizes:  # the parent class refuses duplicate anchors
            self._sizes[anchor] = None
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._sizes[anchor] = (self._nodes - before, self._deepest - self._depth)
        self._deepest = max(deepest, self._deepest)
        return node

    def _count_alias(self, event: Any) -> None:
        size = self._sizes[event.anchor]
        if size is None:
            raise _refused(f"the alias *{event.anchor} is inside its own anchor", event)
        nodes, depth = size
        self._deepest = max(self._deepest, self._depth + depth)
        self._count(nodes, self._depth + depth, event)

    def _count(self, nodes: int, depth: int, event: yaml.Event) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _refused(f"more than {MAX_NODES:,} values (an alias counts as all that it stands for)", event)
        if depth > MAX_DEPTH:
            raise _refused(f"more than {MAX_DEPTH} nested sections or lists", event)
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT:
            raise _refused(f"a value of {len(event.value):,} characters; at most {MAX_TEXT:,} can be used", event)
        if isinstance(event, yaml.ScalarEvent) and _SURROGATE.search(event.value):
            raise _refused("half of a surrogate pair, which is not text", event)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MAX_DIGITS:
            raise _refused(f"an integer of {len(node.value):,} digits; at most {MAX_DIGITS} can be used", node)
        return super().construct_yaml_int(node)

    def refuse_tag(self, node: yaml.Node) -> Any:
        raise _refused(f"the tag {node.tag} cannot be used here", node)

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)  # merge keys (<<) are not expanded yet
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} occurs twice", problem_mark=key.start_mark)
            seen.add((key.tag, str(key.value)))
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes the strings that `_Loader` would read as numbers."""


def _refused(problem: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
for _tag in ("binary", "omap", "pairs", "set", "timestamp"):  # not needed in a configuration
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.refuse_tag)
for _dialect in (_Loader, _Dumper):
    _dialect.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse(text: str, what: str) -> Any:
    """Parse YAML into plain data; `what` names the text in error messages.

    Raises:
        UserError: It is not valid YAML, or too large or deep; found in bounded time.
    """
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{what} has more than {MAX_CHARACTERS:,} characters, which no configuration needs")
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{what} is not valid YAML: {_problem(error)}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # e.g. !!int before text
        raise UserError(f"{what} is not valid YAML: a tag does not fit its value ({cut(str(error))})") from None


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = cut(getattr(error, "problem", None) or " ".join(str(error).split()), 200)
    return f"{problem} (line {mark.line + 1})" if mark else problem


def dump(values: dict[str, Any]) -> str:
    """Format plain data as YAML, one line per key."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False))


def on_one_line(value: Any) -> str:
    """Format plain data as YAML on one line."""
    text = yaml.dump([value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=10**9).strip()
    if "\n" in text:  # YAML would spread it over several lines
        return escaped(json.dumps(value, ensure_ascii=False))
    return str(text[1:-1])


def show(value: Any) -> str:
    """Format a value for an error message, truncated if it is long."""
    return quoted(value) if isinstance(value, str) else cut(on_one_line(value))
