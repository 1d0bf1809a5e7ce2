"""The settings of an example: its config file, and the options of its command line."""

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
"""Seed of the weights and of the order of samples."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys that all three configs have."""

    samples: int
    """Number of synthetic samples."""
    distinct: int
    """Number of different images and arrays; after these they repeat."""
    shards: int
    scale: float
    """Factor on the sides of the synthetic images and maps."""
    width: int
    depth: int
    """Blocks per stage of the backbone."""
    epochs: int
    lr: float
    max_norm: float
    """Largest norm of the gradients."""
    log_every: int
    """Steps between two lines of output."""


S = TypeVar("S", bound=Settings)
T = TypeVar("T")


@dataclass(frozen=True)
class ExampleRun(Generic[S]):
    """The run that was requested on the command line."""

    settings: S
    data: Path
    habits: Collection[str]
    seconds: float
    """Duration after which the training ends."""


class TimeLimitedLoader(Generic[T]):
    """A loader that ends after a given time, counted from the first batch on over all epochs."""

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
            del batch  # so that its memory is free while the loop waits for the next batch


def parse_arguments(kind: type[S], config: Path, habits: Sequence[str], about: str | None) -> ExampleRun[S]:
    """Parse the command line of an example."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder; if it has no shards, some are made")
    parser.add_argument("--config", type=Path, default=config)
    parser.add_argument("--toy", action="store_true", help="the small sizes under toy in the config: seconds on a CPU")
    parser.add_argument(
        "--before",
        nargs="*",
        choices=habits,
        metavar="HABIT",
        help=f"the report's habits; all, or: {', '.join(habits)}",
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="limit of the training; all epochs if left out")
    args = parser.parse_args()
    restored = () if args.before is None else args.before or habits
    return ExampleRun(read_settings(kind, args.config, toy=args.toy), args.data, restored, args.seconds)


def read_settings(kind: type[S], config: Path, *, toy: bool, changed: Mapping[str, Any] | None = None) -> S:
    """Read a config and refuse unknown keys and values of another type; its `toy` section has the small sizes."""
    values = read_yaml(config.read_bytes())
    small = values.pop("toy", {})
    try:
        return msgspec.convert({**values, **(small if toy else {}), **(changed or {})}, kind)
    except msgspec.ValidationError as error:
        raise SettingError(f"{config.name}: {error}") from None
