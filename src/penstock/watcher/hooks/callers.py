"""The callers of a loader's `__iter__`, found on the stack: the script's name for the loader, and `penstock.watch`."""

from __future__ import annotations

import ast
import dis
import linecache
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


def iterated_name() -> str:
    """Return the script's name for the loader it iterates over; "" if other code lies between or it has none.

    Only the source is read: access to a frame's variables would keep them alive and change what locals() returned.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_SKIPPED_PACKAGES):
        frame = frame.f_back
    if frame is None or "site-packages" in frame.f_code.co_filename:
        return ""
    try:
        return _name(ast.parse(f"({_expression(frame)})", mode="eval").body)
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


def _name(node: ast.expr) -> str:
    """Return the name of the variable, attribute or key that an expression reads the loader from; "" if it has none."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):  # loaders["train"]
            return name
        case ast.Subscript(value=inner) | ast.Starred(value=inner):
            return _name(inner)
        case ast.Call(func=function, args=arguments):
            return _name_in_call(_name(function), [each for each in arguments if not isinstance(each, ast.Constant)])
    return ""


def _name_in_call(called: str, arguments: list[ast.expr]) -> str:
    """Return the name in a call such as `tqdm(enumerate(name, 1))`; "" for a loader that is made in the expression."""
    if called.endswith("Loader") or (called in _ITERATE_SEVERAL and len(arguments) > 1):
        return ""
    return _name(arguments[0]) if arguments else called


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
