"""YAML restricted to plain values: no tags, no repeated keys, no dates, and anchors only in `read_anchored_yaml`.

The values are those that JSON has: mappings with strings as keys, lists, text, numbers, true, false and null.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import yaml

from penstock.errors import SettingError

MAX_DEPTH = 12
"""Levels of nested lists and mappings; no settings are deeper."""
MAX_NUMBER = 1 << 63
"""Integers must be smaller, to fit into 64 bits with a sign."""
MAX_REASON = 300
"""Characters of PyYAML's message, which may quote a whole key."""
_RESOLVED = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
_MERGED = "tag:yaml.org,2002:merge"


def read_yaml(data: bytes) -> Any:
    """Return the value of a YAML document; a SettingError names the line and column."""
    return to_plain_values(_load(data, _Plain))


def read_anchored_yaml(data: bytes) -> Any:
    """Return the value of a YAML document that may have anchors, aliases and merged keys (`<<: *base`).

    A few aliases of aliases can expand to any size, so the caller must check types before it walks through the value.
    """
    return _load(data, _Anchored)


def _load(data: bytes, loader: type[yaml.SafeLoader]) -> Any:
    try:
        return yaml.load(data, loader)  # safe: the loader is a restricted SafeLoader
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # int() and chr() raise the middle two
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise SettingError(f"does not read as YAML: {reason or 'nested too deep'}") from error


def write_yaml(value: Any) -> str:
    """Return the value as text for `read_yaml`; characters are escaped only if some of them are not printable."""
    checked = to_plain_values(value)
    text = _dump(checked, escaped=False)
    return text if text.replace("\n", "").isprintable() else _dump(checked, escaped=True)


def to_plain_values(value: Any, place: tuple[str, ...] = ()) -> Any:
    """Return a copy of dicts, lists, text and finite numbers, with numpy numbers made Python's; refuse other values."""
    if len(place) > MAX_DEPTH:
        raise _refused(place, f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {_name(key, place): to_plain_values(item, (*place, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_values(item, (*place, str(index))) for index, item in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int) and abs(value) < MAX_NUMBER:
        return int(value)
    if isinstance(value, float) and isfinite(value):
        return float(value)
    if isinstance(value, int | float):
        raise _refused(place, "is infinite, too large or not a number")
    raise _refused(place, f"a {type(value).__name__} is not a plain value", "Use text, numbers, lists and mappings")


def _name(key: Any, place: tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise _refused(place, f"a key is a {type(key).__name__} and not a string", "Put it in quotes")
    return str(key)


def _refused(place: tuple[str, ...], reason: str, advice: str | None = None) -> SettingError:
    where = ".".join(place)[:MAX_REASON]
    return SettingError(f"{where}: {reason}" if where else reason, advice=advice)


def _resolvers(*tags: str) -> dict[str, Any]:
    """Return those of PyYAML's resolvers, by first character, that turn a word into a value of these types."""
    resolved = {*_RESOLVED, *tags}
    return {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in resolved]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Anchored(yaml.SafeLoader):
    """A loader that refuses tags and repeated keys (of which YAML takes the last) and reads 2024-01-01 as text."""

    yaml_implicit_resolvers = _resolvers(_MERGED)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse tags, since they create objects."""
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs have no types
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(None, None, "tags are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key; a merged key may be set again."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGED:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is repeated", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Plain(_Anchored):
    """A loader that also refuses anchors and aliases, with which a small file can expand to any size."""

    yaml_implicit_resolvers = _resolvers()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse anchors and aliases."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.composer.ComposerError(None, None, "anchors and aliases are not allowed", event.start_mark)
        return super().compose_node(parent, index)


def _dump(value: Any, *, escaped: bool) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=not escaped, width=100, default_flow_style=False)
