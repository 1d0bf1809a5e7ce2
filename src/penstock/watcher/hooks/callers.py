"""The callers of a loader's `__iter__`, found on the stack: the script's name for the loader, and `penstock.watch`."""

from __future__ import annotations

import ast
import dis
import linecache
import re
import sys
from types import FrameType

_WATCH_MODULES = ("penstock.watcher.dataloader.main_process", "penstock.watcher.loader_views")
"""Modules in which `penstock.watch` makes iterators of loaders."""
_SKIPPED_PACKAGES = ("penstock.", "torch.", "tqdm.")
"""Frames of these packages may lie between the script and the loader."""
_MAKES_ITERATOR = frozenset({"GET_ITER", "GET_YIELD_FROM_ITER"})
"""Bytecode instructions that call `iter`."""
_LOOPS = frozenset({"FOR_ITER", "SEND"})
"""Bytecode instructions that call `next`."""
_ITERATE_SEVERAL = frozenset({"zip", "zip_longest", "chain", "product", "map", "filter"})
"""Calls that iterate over any of their arguments, or not over the first."""


_ITERATE_ARGUMENT = frozenset({"enumerate", "iter", "list", "tuple", "islice", "cycle", "tqdm", "track"})
"""Calls that iterate over their first argument."""
_LOADER_NAME = re.compile(
    r"load|batches|iter|(^|_)(dl|train|training|val|valid|validation|test|eval)(_|$|\d)", re.IGNORECASE
)
"""Names of variables that hold a loader, for where the variable itself cannot be read. `train_set` is none."""


def iterated_name(loader: object) -> str:
    """Return the name of the variable in which the script holds the loader it iterates over.

    It is "" if other code lies between, or if the variable holds something else, such as the dataset in
    `make_batches(dataset)`. Local variables are not read before Python 3.13, because that would keep them alive and
    change what `locals()` returned; there, the name itself must be that of a loader.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_SKIPPED_PACKAGES):
        frame = frame.f_back
    if frame is None or "site-packages" in frame.f_code.co_filename:
        return ""
    try:
        expression = ast.parse(f"({_expression(frame)})", mode="eval").body
        variable = _variable(expression)
        if variable is None or (_calls_unknown(expression) and not _holds(variable, frame, loader)):
            return ""
        return _name(variable)
    except Exception:  # there is no source, or it has changed since it was imported
        return ""


def _expression(frame: FrameType) -> str:
    """Return the source of the call that iterates, or of the expression a `for` loop iterates over."""
    executed = [
        instruction for instruction in dis.get_instructions(frame.f_code) if instruction.offset <= frame.f_lasti
    ]
    if executed[-1].opname in _LOOPS:  # the first iteration: the iterator was made just before
        last = max(index for index, each in enumerate(executed) if each.opname in _MAKES_ITERATOR)
        executed = executed[: last + 1]
    if executed[-1].opname in _MAKES_ITERATOR:
        executed.pop()
    source = executed[-1].positions
    if source is None or source.lineno is None or source.end_lineno is None:
        return ""
    line_numbers = range(source.lineno, source.end_lineno + 1)
    lines = [linecache.getline(frame.f_code.co_filename, n, frame.f_globals).encode() for n in line_numbers]
    lines[-1] = lines[-1][: source.end_col_offset]
    lines[0] = lines[0][source.col_offset :]
    return b"".join(lines).decode()


def _variable(node: ast.expr) -> ast.expr | None:
    """Return the variable, attribute or item that an expression reads the loader from; None if there is none."""
    match node:
        case ast.Name() | ast.Attribute() | ast.Subscript(slice=ast.Constant()):  # loaders["train"]
            return node
        case ast.Subscript(value=inner) | ast.Starred(value=inner):
            return _variable(inner)
        case ast.Call(func=function, args=arguments):
            others = [each for each in arguments if not isinstance(each, ast.Constant)]
            called = _name(function)  # tqdm(enumerate(loader, 1)); a loader that is made in the expression has no name
            if not others or called.endswith("Loader") or (called in _ITERATE_SEVERAL and len(others) > 1):
                return None
            return _variable(others[0])
    return None


def _calls_unknown(expression: ast.expr) -> bool:
    """Return whether the expression calls a function that may return another iterable than its argument."""
    return any(
        isinstance(node, ast.Call) and _name(node.func) not in _ITERATE_ARGUMENT for node in ast.walk(expression)
    )


def _name(node: ast.expr) -> str:
    """Return the name of a variable, an attribute or a key; that of the list for an item with a number."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Subscript(value=inner):
            return _name(inner)
    return ""


def _holds(variable: ast.expr, frame: FrameType, loader: object) -> bool:
    """Return whether the variable holds the loader; where it cannot be read, whether its name is that of a loader."""
    try:
        return _value(variable, frame) is loader
    except LookupError:
        return _LOADER_NAME.search(_name(variable)) is not None


def _value(node: ast.expr, frame: FrameType) -> object:
    """Return the value of a variable without running code of the script; LookupError if it cannot be read."""
    match node:
        case ast.Name(id=name) if name in frame.f_code.co_names:  # a global one
            return frame.f_globals[name]
        case ast.Name(id=name) if sys.version_info >= (3, 13):
            return frame.f_locals[name]
        case ast.Attribute(value=inner, attr=name):
            return getattr(_value(inner, frame), "__dict__", {})[name]
        case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
            held = _value(inner, frame)
            if type(held) in (dict, list, tuple):
                return held[key]  # type: ignore[index]
    raise LookupError


def called_by_watch() -> bool:
    """Return whether `penstock.watch` makes this iterator; it then records the loader itself."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") in _WATCH_MODULES:
            return True
        frame = frame.f_back
    return False
