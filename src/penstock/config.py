"""Makes a loader from a YAML file or a mapping, whose keys are the arguments of `penstock.Loader`.

    shards: sa1b/*.tar
    fields:
      image: {type: image, suffix: .jpg, size: 1024}
      features: {type: array, suffix: _features.npz, key: features}
    batch_size: 24
    shuffle: true
    num_workers: 8
    transform: mypackage.augment:flip
    reading: {num_readers: 16}
    errors: {on_error: skip, max_bad_fraction: 0.05}

Option groups are nested mappings, and so are the `crop` and the `gpu_transform` of an image. A plan may set what the
config leaves open: see `penstock.plan.document`.

Relative paths start at the working directory, as in Python, not at the file. `filter`, `transform` and
`batch_transform` name functions, which are imported: a config is as trusted as the script that reads it. No key is
ignored: it is used, or refused with the reason.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from penstock.core.strict_yaml import read_anchored_yaml
from penstock.core.text import suggest_name
from penstock.data.fields import Array, Boxes, Geometry, Image, Json, Label, Mask, Raw, Text
from penstock.errors import SettingError
from penstock.options import CacheOptions, EngineOptions, ErrorOptions, ReadOptions

MAX_BYTES = 1 << 20
"""A larger file is not a config."""
FIELD_TYPES: Mapping[str, Callable[..., Any]] = {
    "image": Image, "mask": Mask, "boxes": Boxes, "geometry": Geometry, "label": Label, "array": Array, "json": Json,
    "text": Text, "raw": Raw,
}  # fmt: skip
GROUPS: Mapping[str, Callable[..., Any]] = {
    "reading": ReadOptions, "cache": CacheOptions, "errors": ErrorOptions, "engine": EngineOptions,
}  # fmt: skip
"""The option groups of a Loader, which are nested mappings in a config and in a plan."""
CODE_ONLY = frozenset({"sampler", "batch_sampler", "collate_fn"})
"""Arguments of a Loader that are objects, which a file cannot hold."""

Source = str | os.PathLike[str] | Mapping[str, Any]
Made = TypeVar("Made")


def build(make: Callable[..., Made], source: Source, plan: str | os.PathLike[str] | None = None) -> Made:
    """Return `make(**arguments)`, with the arguments of the config, and those of the plan where the config has none.

    Errors name the file and the key.
    """
    planned = {} if plan is None else _planned(make, plan)
    with _naming("config" if isinstance(source, Mapping) else os.fspath(source)):
        config = _arguments(make, source if isinstance(source, Mapping) else _read(source))
        return make(**_with_groups({**planned, **config, **_merged_groups(planned, config)}))


def _planned(make: Callable[..., Any], plan: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a plan sets of a loader. Shards, fields and functions come from the config alone."""
    from penstock.plan.document import loader_settings  # imported only where there is a plan

    settings = loader_settings(plan)
    with _naming(os.fspath(plan)), _at("loader"):
        return _checked(make, _known(settings, [key for key in _settable(make) if key not in _SPECIAL]))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Let errors name the file, and the keys that lead to the wrong value."""
    try:
        yield
    except _KeyRefused as error:
        path = ".".join(error.path).replace(".[", "[")
        raise SettingError(f"{name}: {path}: {error.reason}", advice=error.advice) from error.__cause__
    except SettingError as error:
        named = SettingError(f"{name}: {error.reason}", advice=error.advice)
        raise named.at(shard=error.shard, stage=error.stage) from error


def _arguments(make: Callable[..., Any], source: Mapping[str, Any]) -> dict[str, Any]:
    for key in CODE_ONLY & source.keys():
        raise _KeyRefused([key], "is an object, which no file can hold", "Give it to Loader in Python")
    settings = _known(source, _settable(make))
    _check_required(make, settings)
    special = {key: settings.pop(key) for key in _SPECIAL if key in settings}
    arguments = _checked(make, settings)
    for key, value in special.items():
        with _at(key):
            arguments[key] = _SPECIAL[key](value)
    return arguments


class _KeyRefused(Exception):
    """A SettingError that is passed up to the caller and collects the keys that lead to the wrong value."""

    def __init__(self, path: list[str], reason: str, advice: str | None) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.advice = advice


@contextmanager
def _at(key: str) -> Iterator[None]:
    try:
        yield
    except _KeyRefused as error:
        error.path.insert(0, key)
        raise
    except SettingError as error:
        raise _KeyRefused([key], error.reason, error.advice) from error


# -- the file ---------------------------------------------------------------------------------------------------------


def _read(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingError(f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise SettingError(f"more than {MAX_BYTES} bytes are no config")
    content = read_anchored_yaml(data)
    if not isinstance(content, dict):
        raise SettingError("holds no keys", advice="Write one 'key: value' a line")
    return content


# -- option groups ----------------------------------------------------------------------------------------------------


def _group(name: str, value: Any) -> dict[str, Any]:
    """Return the checked options of a group; it is made of them when those of the plan and of the config are merged."""
    if name == "cache" and isinstance(value, str):
        return {"folder": value}
    options = _typed(value, dict[str, Any] | None) or {}
    return _checked(GROUPS[name], _known(options, _settable(GROUPS[name])))


def _merged_groups(planned: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {**planned.get(name, {}), **config.get(name, {})} for name in GROUPS}


def _with_groups(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with every group that has options made into its object, and without the others."""
    for name, kind in GROUPS.items():
        options = arguments.pop(name)
        if options:
            with _at(name):
                _check_required(kind, options)
                arguments[name] = kind(**options)
    return arguments


# -- values -----------------------------------------------------------------------------------------------------------


def _shards(value: Any) -> Any:
    return _typed(value, str | list[str] | dict[str, float])


def _fields(value: Any) -> dict[str, Any]:
    fields = {}
    for name, declared in _typed(value, dict[str, dict[str, Any]]).items():
        with _at(name):
            if "type" not in declared:
                raise _KeyRefused(["type"], "is missing", f"Use one of {', '.join(FIELD_TYPES)}")
            with _at("type"):
                kind = FIELD_TYPES[_one_of(declared["type"], FIELD_TYPES)]
            options = {key: option for key, option in declared.items() if key != "type"}
            _check_required(kind, _known(options, _settable(kind)))
            fields[name] = kind(**_checked(kind, options))
    return fields


def _function(value: Any) -> Any:
    name = _typed(value, str | None)
    return None if name is None else function_named(name)


def function_named(name: str) -> Callable[..., Any]:
    """Return the function that "package.module:function" names. Its module is imported, so the name must be trusted."""
    if ":" not in name:
        raise SettingError(f"{name!r} names no function", advice='Write "package.module:function"')
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(f"{name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise SettingError(f"{name!r} is not a function")
    return found  # type: ignore[no-any-return]


_SPECIAL: Mapping[str, Callable[[Any], Any]] = {
    "shards": _shards, "fields": _fields, "filter": _function, "transform": _function, "batch_transform": _function,
}  # fmt: skip


# -- checking against a signature -------------------------------------------------------------------------------------


def _settable(make: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(make).parameters if name not in CODE_ONLY]


def _check_required(make: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    for parameter in inspect.signature(make).parameters.values():
        if parameter.default is parameter.empty and parameter.name not in settings:
            raise _KeyRefused([parameter.name], "is missing", None)


def _known(settings: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return a copy of the settings, if each has one of these names."""
    for key in settings:
        if key not in names:
            raise _KeyRefused([str(key)], "is not known", suggest_name(str(key), names))
    return dict(settings)


def _checked(make: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, each of the type that the parameter of its name has."""
    hints = get_type_hints(make.__init__)
    checked = {}
    for key, value in settings.items():
        with _at(key):
            checked[key] = _group(key, value) if key in GROUPS else _converted(value, hints[key])
    return checked


def _converted(value: Any, hint: Any) -> Any:
    """Return the value if it is of that type; one that is not in a Literal is refused with the names that are.

    A mapping is made into the object that the type allows, such as a RandomResizedCrop.
    """
    union = get_origin(hint) in (Union, UnionType)
    kinds = [kind for kind in (get_args(hint) if union else [hint]) if get_origin(kind) is not os.PathLike]
    if value is None and NoneType in kinds:
        return None
    objects = [kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)]
    if objects and isinstance(value, Mapping):
        make = objects[0]
        return make(**_checked(make, _known(value, _settable(make))))
    plain = [kind for kind in kinds if kind is not NoneType and kind not in objects]
    if len(plain) == 1 and get_origin(plain[0]) is Literal:
        return _one_of(value, get_args(plain[0]))
    return _typed(value, Union[tuple(kinds)])  # noqa: UP007


def _typed(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, below = str(error).partition(" - at `$")
        raise (_KeyRefused([below.strip(".`")], reason, None) if below else SettingError(reason)) from None


def _one_of(value: Any, names: Collection[str]) -> str:
    if _typed(value, str) not in names:
        raise SettingError(f"{value!r} is not known", advice=f"Use one of {', '.join(names)}")
    return str(value)
