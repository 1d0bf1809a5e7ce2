"""YAML that holds plain values and nothing else: no tags, no key twice, no dates; and no anchors, unless asked for.

What it gives is what JSON could hold: mappings with names as keys, lists, text, numbers, true, false and null.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import yaml

from penstock.errors import SettingError

DEEPEST = 12
"""Levels of lists and mappings inside each other: no settings are deeper."""
LARGEST_NUMBER = 1 << 63
LONGEST_REASON = 300
"""Characters of PyYAML's message, which may quote a whole key."""
_RESOLVED = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
_MERGED = "tag:yaml.org,2002:merge"


def read_yaml(data: bytes) -> Any:
    """What the text says, or a SettingError with the place."""
    return to_plain_values(_load(data, _Plain))


def read_anchored_yaml(data: bytes) -> Any:
    """The same with anchors, aliases and merged keys (`<<: *base`), for people who repeat themselves.

    A few aliases of aliases unfold to any size: the value must be checked against what is expected before it is walked.
    """
    return _load(data, _Anchored)


def _load(data: bytes, loader: type[yaml.SafeLoader]) -> Any:
    try:
        return yaml.load(data, loader)  # a SafeLoader that knows even less
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # int() and chr() raise the middle two
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise SettingError(f"does not read as YAML: {reason or 'nested too deep'}") from error


def write_yaml(value: Any) -> str:
    """The same value as text that `read_yaml` takes: letters of all scripts as they are, unless some cannot be seen."""
    checked = to_plain_values(value)
    text = _dump(checked, as_they_are=True)
    return text if text.replace("\n", "").isprintable() else _dump(checked, as_they_are=False)


def to_plain_values(value: Any, place: tuple[str, ...] = ()) -> Any:
    """A copy of dicts, lists, text and finite numbers only, numpy's numbers made Python's; the rest is refused."""
    if len(place) > DEEPEST:
        raise _refused(place, f"is nested deeper than {DEEPEST} levels")
    if isinstance(value, Mapping):
        return {_name(key, place): to_plain_values(item, (*place, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_values(item, (*place, str(at))) for at, item in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int) and abs(value) < LARGEST_NUMBER:
        return int(value)
    if isinstance(value, float) and isfinite(value):
        return float(value)
    if isinstance(value, int | float):
        raise _refused(place, "is infinite, too large or not a number")
    raise _refused(place, f"a {type(value).__name__} is no plain value", "Use text, numbers, lists and mappings")


def _name(key: Any, place: tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise _refused(place, f"a key is a {type(key).__name__} where a name belongs", "Put it in quotes")
    return str(key)


def _refused(place: tuple[str, ...], reason: str, advice: str | None = None) -> SettingError:
    where = ".".join(place)[:LONGEST_REASON]
    return SettingError(f"{where}: {reason}" if where else reason, advice=advice)


def _resolvers(*tags: str) -> dict[str, Any]:
    """Of PyYAML's, those that make something else than text of a word."""
    kept = {*_RESOLVED, *tags}
    return {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in kept]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Anchored(yaml.SafeLoader):
    """YAML lets the last of two equal keys win, and reads 2024-01-01 as a date: here both would be a surprise."""

    yaml_implicit_resolvers = _resolvers(_MERGED)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Tags ask for objects."""
        event = self.peek_event()  # type: ignore[no-untyped-call]  # so the stubs have it
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(None, None, "tags are not used here", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Every key once; what is merged may be given again."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGED:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Plain(_Anchored):
    """Aliases make a small file unfold to any size."""

    yaml_implicit_resolvers = _resolvers()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Every value stands where it is used."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.composer.ComposerError(None, None, "anchors and aliases are not used here", event.start_mark)
        return super().compose_node(parent, index)


def _dump(value: Any, *, as_they_are: bool) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=as_they_are, width=100, default_flow_style=False)
