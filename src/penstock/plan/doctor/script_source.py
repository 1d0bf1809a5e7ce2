"""The DataLoader calls in the source of a script, with their arguments. The source is parsed, never run."""

from __future__ import annotations

import ast
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import SettingError

SOURCE_BYTES_MAX = 4 << 20
"""Larger than any script written by hand."""
TEXT_MAX = 40
"""Number of characters of an expression that are shown."""
DEFAULTS: Mapping[str, Any] = {
    "batch_size": 1,
    "num_workers": 0,
    "prefetch_factor": None,
    "pin_memory": False,
    "persistent_workers": False,
}
"""torch's values for arguments that the call leaves out."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "batch_size": (int, type(None)),
    "num_workers": (int,),
    "prefetch_factor": (int, type(None)),
    "pin_memory": (bool,),
    "persistent_workers": (bool,),
}
_POSITIONS = {"batch_size": 1, "num_workers": 5, "pin_memory": 7}


@dataclass(frozen=True, slots=True)
class SourceArgument:
    """One argument of a call, as written in the source."""

    value: Any = None
    """The value; meaningless unless it is known."""
    text: str = ""
    """The expression in the source; empty if the argument is left out."""
    known: bool = True
    """Whether it is a literal, a name bound to one literal only, or left out; other values are known at run time."""

    @property
    def given(self) -> bool:
        """Whether the call has the argument."""
        return bool(self.text)


@dataclass(frozen=True, slots=True)
class LoaderCall:
    """One call `DataLoader(…)`."""

    line: int
    arguments: Mapping[str, SourceArgument]
    """The argument of each name in DEFAULTS."""

    def __getitem__(self, name: str) -> SourceArgument:
        return self.arguments[name]


def loader_calls(path: Path) -> tuple[LoaderCall, ...]:
    """Return all calls of DataLoader in a script, by line; raise SettingError if it is not Python."""
    tree = _parse(path)
    names = {"DataLoader", *_aliases(tree)}
    constants = _constants(tree)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _function_name(node.func) in names)
    return tuple(sorted((_call(node, constants) for node in calls), key=lambda call: call.line))


def _parse(path: Path) -> ast.Module:
    source = _read(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own code, such as "\\d"
            return ast.parse(source)
    except SyntaxError as error:
        version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        raise SettingError(f"{path} is not {version}: line {error.lineno or 0}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; brackets nested too deeply
        raise SettingError(f"{path} is not Python: {error}") from error


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            source = file.read(SOURCE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(source) > SOURCE_BYTES_MAX:
        raise SettingError(f"{path} is longer than {SOURCE_BYTES_MAX >> 20} MiB", advice="Name the training script")
    return source


def _aliases(tree: ast.Module) -> Iterator[str]:
    """Yield other names of DataLoader: `from torch.utils.data import DataLoader as Loader`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (name.asname for name in node.names if name.name == "DataLoader" and name.asname)


def _function_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr if function.attr == "DataLoader" else ""
    return function.id if isinstance(function, ast.Name) else ""


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the names that are bound once in the whole file, by a plain assignment."""
    bound: Counter[str] = Counter()
    values: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            bound[node.id] += 1
        elif isinstance(node, ast.arg):
            bound[node.arg] += 1
        elif isinstance(node, ast.Global | ast.Nonlocal):
            bound.update(node.names)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            values[node.target.id] = node.value
    return {name: value for name, value in values.items() if bound[name] == 1}


def _call(node: ast.Call, constants: Mapping[str, ast.expr]) -> LoaderCall:
    given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
    for name, position in _POSITIONS.items():
        if position < len(node.args) and not starred:
            given.setdefault(name, node.args[position])
    expanded = next((f"**{_text(keyword.value)}" for keyword in node.keywords if keyword.arg is None), "")
    left_out = expanded or ("*…" if starred else "")
    arguments = {
        name: _argument(name, given[name], constants)
        if name in given
        else SourceArgument(default, left_out, not left_out)
        for name, default in DEFAULTS.items()
    }
    return LoaderCall(node.lineno, arguments)


def _argument(name: str, node: ast.expr, constants: Mapping[str, ast.expr]) -> SourceArgument:
    text = _text(node)
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return SourceArgument(None, text, known=False)
    wrong = not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and bool not in _TYPES[name])
    return SourceArgument(None, text, known=False) if wrong else SourceArgument(value, text)


def _text(node: ast.expr) -> str:
    try:
        text = ast.unparse(node)
    except RecursionError:
        return "…"
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
