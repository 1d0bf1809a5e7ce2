"""A loader as a YAML file or a mapping: the keys are the Loader's own arguments, and a few names torch's users know.

    shards: sa1b/*.tar
    fields:
      image: {type: image, suffix: .jpg, size: 1024}
      features: {type: array, suffix: _features.npz, key: features}
    batch_size: 24
    shuffle: true
    transform: mypackage.augment:flip

A plan may fill in what the config leaves open: see `penstock.plan.document`.

Paths mean what they mean in Python: they start at the working directory, not at the file. `transform` and
`batch_transform` name functions, which are imported: a config is as trusted as the script that reads it. Nothing is
ignored: a key is used, or refused with the reason.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from penstock.core.strict_yaml import read_anchored_yaml
from penstock.core.text import suggest_name
from penstock.data.fields import Array, Image, Json, Label, Raw, Text
from penstock.errors import SettingError

MAX_BYTES = 1 << 20
"""A config larger than this is some other file."""
FIELD_TYPES: Mapping[str, Callable[..., Any]] = {
    "image": Image, "array": Array, "json": Json, "text": Text, "raw": Raw, "label": Label,
}  # fmt: skip
CODE_ONLY = frozenset({"sampler", "batch_sampler", "collate_fn"})
"""Arguments of a Loader over a map-style dataset: objects, which a file cannot hold."""

Source = str | os.PathLike[str] | Mapping[str, Any]
Made = TypeVar("Made")


def build(make: Callable[..., Made], source: Source, plan: str | os.PathLike[str] | None = None) -> Made:
    """`make(**arguments)` with what the source says, and what a plan says of the rest; errors name file and key."""
    planned = {} if plan is None else _planned(make, plan)
    with _naming("config" if isinstance(source, Mapping) else os.fspath(source)):
        given = _arguments(make, source if isinstance(source, Mapping) else _read(source))
        return make(**{**planned, **given})


def _planned(make: Callable[..., Any], plan: str | os.PathLike[str]) -> dict[str, Any]:
    """What a plan sets of a loader. Shards, fields and functions are the config's alone."""
    from penstock.plan.document import loader_settings  # only where there is one

    settings = loader_settings(plan)
    with _naming(os.fspath(plan)), _at("loader"):
        return _checked(make, _known(settings, [key for key in _settable(make) if key not in _SPECIAL]), required=[])


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Errors name the file, and the keys that lead to what is wrong."""
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
    settings = _known(source, [*_settable(make), *_FAMILIAR])
    familiar = {key: settings.pop(key) for key in _FAMILIAR if key in settings}
    special = {key: settings.pop(key) for key in _SPECIAL if key in settings}
    arguments = _checked(make, settings, required=[key for key in _required(make) if key not in special])
    for key, value in special.items():
        with _at(key):
            arguments[key] = _SPECIAL[key](value)
    for key, value in familiar.items():
        with _at(key):
            arguments |= _FAMILIAR[key](value, arguments)
    return arguments


class _KeyRefused(Exception):
    """A SettingError on its way out, collecting the keys that lead to it."""

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


# -- the file --------------------------------------------------------------------------------------------------


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


# -- what torch's users know: in our own words, or a reason why there is no such thing here ----------------------


def _num_workers(value: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    if "workers" in settings:
        raise SettingError("is another name for workers, which is given too", advice="Keep one of them")
    if (workers := _typed(value, int)) != 0:
        return {"workers": workers}
    if settings.get("executor") == "process":
        raise SettingError("0 means no worker processes, and executor says process")
    return {"workers": 1, "executor": "thread"}


def _prefetch_factor(_value: Any, _settings: Mapping[str, Any]) -> dict[str, Any]:
    raise SettingError(
        "look-ahead is not counted in batches per worker: as much is made ahead as memory_bytes has room for",
        advice="Leave it out, or set memory_bytes",
    )


def _pin_memory(value: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    device: str = settings.get("device", "cpu")
    if _typed(value, bool) == device.startswith("cuda"):
        return {}
    advice = "Set device: cuda, and batches arrive there" if value else "Leave it out"
    raise SettingError(f"memory is pinned if batches go to a GPU, and only then; device is {device!r}", advice=advice)


def _persistent_workers(value: Any, _settings: Mapping[str, Any]) -> dict[str, Any]:
    if not _typed(value, bool):
        raise SettingError("workers always live from epoch to epoch", advice="Leave it out; close() ends them")
    return {}


_FAMILIAR: Mapping[str, Callable[[Any, Mapping[str, Any]], dict[str, Any]]] = {
    "num_workers": _num_workers,
    "prefetch_factor": _prefetch_factor,
    "pin_memory": _pin_memory,
    "persistent_workers": _persistent_workers,
}


# -- values ----------------------------------------------------------------------------------------------------


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
            fields[name] = kind(**_checked(kind, _known(options, _settable(kind)), required=_required(kind)))
    return fields


def _function(value: Any) -> Any:
    name = _typed(value, str | None)
    return None if name is None else function_named(name)


def function_named(name: str) -> Callable[..., Any]:
    """What "package.module:function" names: it is imported, so trust it."""
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
    "shards": _shards, "fields": _fields, "transform": _function, "batch_transform": _function,
}  # fmt: skip


# -- checking against a signature ------------------------------------------------------------------------------


def _settable(make: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(make).parameters if name not in CODE_ONLY]


def _required(make: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(make).parameters.values()
    return [each.name for each in parameters if each.default is each.empty]


def _known(settings: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """A copy, if there is no key of another name."""
    for key in settings:
        if key not in names:
            raise _KeyRefused([str(key)], "is not known", suggest_name(str(key), names))
    return dict(settings)


def _checked(make: Callable[..., Any], settings: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    """Every value of the type that the parameter of its name has."""
    for key in required:
        if key not in settings:
            raise _KeyRefused([key], "is missing", None)
    hints = get_type_hints(make.__init__)
    checked = {}
    for key, value in settings.items():
        with _at(key):
            literal = get_origin(hints[key]) is Literal
            checked[key] = _one_of(value, get_args(hints[key])) if literal else _typed(value, hints[key])
    return checked


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
