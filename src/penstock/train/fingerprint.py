"""What kept metadata is bound to: the shards as they are on disk, or a dataset with all that it holds."""

from __future__ import annotations

import hashlib
import inspect
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.flow.shardfeed import ShardFeed


def of_shards(feed: ShardFeed) -> str:
    """Of the samples, and of every shard's size and time: a part may change without changing its length."""
    digest = hashlib.sha256(str(feed.identity()["fingerprint"]).encode())
    for index in feed.dataset.indexes:
        digest.update(f"{index.binding.size} {index.binding.mtime_ns} {index.binding.etag}\n".encode())
    return digest.hexdigest()[:32]


def of_dataset(dataset: Any, function: Callable[[Any], Any]) -> str | None:
    """Of what the dataset holds and of the function's own code; None where they cannot be written down.

    A pickle is made to be digested and is never read. Files that the dataset opens are not looked into.
    """
    try:
        held = pickle.dumps((dataset, *_bound(function)), protocol=5)
        code = inspect.getsource(_code_of(function))
    except Exception:  # whatever a dataset holds may refuse in its own way
        return None
    return hashlib.sha256(held + code.encode()).hexdigest()[:32]


def _code_of(function: Any) -> Any:
    if isinstance(function, partial):
        return _code_of(function.func)
    return function if inspect.isroutine(function) else type(function)


def _bound(function: Any) -> tuple[Any, ...]:
    """What a function carries with it, besides its code."""
    if isinstance(function, partial):
        return (function.args, function.keywords, *_bound(function.func))
    if not inspect.isfunction(function):
        return (function,)
    return (function.__defaults__, function.__kwdefaults__, [cell.cell_contents for cell in function.__closure__ or ()])
