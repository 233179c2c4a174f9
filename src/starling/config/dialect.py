"""The YAML that configurations are written in."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from starling.errors import UserError

_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, a date is text and a key stands only once."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)  # here merged keys (<<) are not yet among a mapping's own
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark)
            seen.add((key.tag, str(key.value)))
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes the strings that `_Loader` would read as numbers."""


for _dialect in (_Loader, _Dumper):
    _dialect.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse(text: str, what: str) -> Any:
    """Plain data; `what` is what the text is called where it is not YAML."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{what} is not valid YAML: {_problem(error)}") from None


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"{problem} (line {mark.line + 1})" if mark else problem


def dump(values: dict[str, Any]) -> str:
    """Plain data as YAML, a line a key."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False))


def on_one_line(value: Any) -> str:
    """Plain data as YAML on one line."""
    text = yaml.dump([value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=10**9).strip()
    if "\n" in text:  # YAML would spread it over several lines
        return json.dumps(value, ensure_ascii=False)
    return str(text[1:-1])


def show(value: Any) -> str:
    """A value as messages show it: cut short where it is long."""
    text = repr(value) if isinstance(value, str) else on_one_line(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
