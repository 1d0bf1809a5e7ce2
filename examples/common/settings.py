"""What a config says, and what the command line adds to it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.strict_yaml import read_yaml
from penstock.errors import SettingError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 7
"""Of the weights, and of the order of samples."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys that all three configs have."""

    samples: int
    """That are made up."""
    distinct: int
    """Of their pictures and arrays; then they come again."""
    shards: int
    scale: float
    """Of the sides of made-up pictures and maps."""
    width: int
    depth: int
    """Of the backbone."""
    epochs: int
    lr: float
    max_norm: float
    """Of the gradients."""
    log_every: int
    """Steps."""


S = TypeVar("S", bound=Settings)
T = TypeVar("T")


@dataclass(frozen=True)
class Run(Generic[S]):
    """What is asked for on the command line."""

    settings: S
    data: Path
    habits: Collection[str]
    seconds: float
    """After which training ends."""


class Bounded(Generic[T]):
    """A loader, pass after pass, until its time is over: counted from the first batch on."""

    def __init__(self, loader: Iterable[T], seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.loader = loader
        self.seconds = seconds
        self.clock = clock
        self._end: float | None = None

    def __iter__(self) -> Iterator[T]:
        for batch in self.loader:
            now = self.clock.now()
            if self._end is None:
                self._end = now + self.seconds
            if now >= self._end:
                return
            yield batch
            del batch  # else its memory would be held here while the next one is waited for


def ask(kind: type[S], config: Path, habits: Sequence[str], about: str | None) -> Run[S]:
    """The command line of an example."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder; where it has no shards, some are made up")
    parser.add_argument("--config", type=Path, default=config)
    parser.add_argument("--toy", action="store_true", help="as small as the config says under toy: seconds on a CPU")
    parser.add_argument(
        "--before",
        nargs="*",
        choices=habits,
        metavar="HABIT",
        help=f"the report's habits; all, or: {', '.join(habits)}",
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="of training, at most; all epochs if left out")
    given = parser.parse_args()
    restored = () if given.before is None else given.before or habits
    return Run(read_settings(kind, given.config, toy=given.toy), given.data, restored, given.seconds)


def read_settings(kind: type[S], config: Path, *, toy: bool, changed: Mapping[str, Any] | None = None) -> S:
    """Every key is known and of its type, or refused by name; `toy` holds what is otherwise at toy size."""
    said = read_yaml(config.read_bytes())
    small = said.pop("toy", {})
    try:
        return msgspec.convert({**said, **(small if toy else {}), **(changed or {})}, kind)
    except msgspec.ValidationError as error:
        raise SettingError(f"{config.name}: {error}") from None
