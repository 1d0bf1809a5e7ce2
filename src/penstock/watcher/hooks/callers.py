"""Who begins to iterate over a loader, and what it is called there."""

from __future__ import annotations

import ast
import dis
import linecache
import sys
from types import FrameType

_WATCH = ("penstock.watcher.dataloader.main_process", "penstock.watcher.loader_views")
_BETWEEN = ("penstock.", "torch.", "tqdm.")
_MAKES_ITERATOR = frozenset({"GET_ITER", "GET_YIELD_FROM_ITER"})
_LOOPS = frozenset({"FOR_ITER", "SEND"})
_OF_SEVERAL = frozenset({"zip", "zip_longest", "chain", "product", "map", "filter"})
"""Calls that iterate over any of their arguments, or not over the first."""


def iterated_name() -> str:
    """What the script's own code calls what it iterates over; "" if that cannot be told: other people's is in between.

    From the source alone: looking into a frame's variables would keep them alive, and change what locals() returned.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None or "site-packages" in frame.f_code.co_filename:
        return ""
    try:
        return _name(ast.parse(f"({_expression(frame)})", mode="eval").body)
    except Exception:  # there is no source, or no longer the one that runs
        return ""


def _expression(frame: FrameType) -> str:
    """The source of what is being evaluated: the call that iterates, or what a loop's iterator is made of."""
    so_far = [instruction for instruction in dis.get_instructions(frame.f_code) if instruction.offset <= frame.f_lasti]
    if so_far[-1].opname in _LOOPS:  # it is the first round: what it goes through was made just before
        so_far = so_far[: max(at for at, each in enumerate(so_far) if each.opname in _MAKES_ITERATOR) + 1]
    if so_far[-1].opname in _MAKES_ITERATOR:
        so_far.pop()
    place = so_far[-1].positions
    if place is None or place.lineno is None or place.end_lineno is None:
        return ""
    numbers = range(place.lineno, place.end_lineno + 1)
    lines = [linecache.getline(frame.f_code.co_filename, n, frame.f_globals).encode() for n in numbers]
    lines[-1] = lines[-1][: place.end_col_offset]
    lines[0] = lines[0][place.col_offset :]
    return b"".join(lines).decode()


def _name(node: ast.expr) -> str:
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
    """`tqdm(enumerate(name, 1), desc=text)`; one that is made on the spot has none."""
    if called.endswith("Loader") or (called in _OF_SEVERAL and len(arguments) > 1):
        return ""
    return _name(arguments[0]) if arguments else called


def asked_by_watch() -> bool:
    """`penstock.watch` has the loader in hand already: once is enough."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") in _WATCH:
            return True
        frame = frame.f_back
    return False
