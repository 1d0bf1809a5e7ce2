"""What a config says, and what the command line adds to it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch

from penstock.core.strictyaml import read_yaml
from penstock.errors import SettingError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 7
"""Of the weights, and of the order of samples."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys that all three configs have."""

    samples: int
    """That are made up."""
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


@dataclass(frozen=True)
class Run(Generic[S]):
    """What is asked for on the command line."""

    settings: S
    data: Path
    habits: Collection[str]


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
    given = parser.parse_args()
    restored = () if given.before is None else given.before or habits
    return Run(read_settings(kind, given.config, toy=given.toy), given.data, restored)


def read_settings(kind: type[S], config: Path, *, toy: bool, changed: Mapping[str, Any] | None = None) -> S:
    """Every key is known and of its type, or refused by name; `toy` holds what is otherwise at toy size."""
    said = read_yaml(config.read_bytes())
    small = said.pop("toy", {})
    try:
        return msgspec.convert({**said, **(small if toy else {}), **(changed or {})}, kind)
    except msgspec.ValidationError as error:
        raise SettingError(f"{config.name}: {error}") from None
