"""What the user may ask of a pack."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np

from penstock.errors import SettingError

ArrayCodec = Literal["keep", "raw", "zstd"]
Side = Literal["long", "short"]
OnBad = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class PackOptions:
    """Checked at birth; nothing here is changed later."""

    arrays: ArrayCodec = "keep"
    """NPZ parts: left as they are, or split into one NPY per array, raw or zstd-compressed."""
    image_size: int | None = None
    """Shrink JPEGs so that `side` has this many pixels; smaller ones are copied as they are."""
    side: Side = "long"
    quality: int = 90
    """Of re-encoded JPEGs. 90 keeps the loss of a second encoding below what training notices."""
    casts: tuple[tuple[str, str], ...] = ()
    """(array name, dtype) pairs: those arrays are stored in that dtype."""
    shard_bytes: int = 256 << 20
    """Shards are closed near this size: large enough for long reads, small enough for many lanes."""
    prefix: str = "shard"
    on_bad: OnBad = "raise"
    """A bad sample ends the run, or is left out and listed."""
    require: tuple[str, ...] = ()
    """Suffixes that every sample must have, which also say how names split; inferred where none are given."""

    def output_settings(self) -> dict[str, object]:
        """What decides the bytes of the output. `on_bad` does not: it decides whether there is one."""
        return {name: value for name, value in asdict(self).items() if name != "on_bad"}

    def __post_init__(self) -> None:
        for name, value, known in (
            ("arrays", self.arrays, get_args(ArrayCodec)),
            ("side", self.side, get_args(Side)),
            ("on_bad", self.on_bad, get_args(OnBad)),
        ):
            if value not in known:
                raise SettingError(f"{name}={value!r} is not known", advice=f"Use one of {', '.join(known)}.")
        if self.image_size is not None and not 1 <= self.image_size <= 65535:
            raise SettingError(f"image size {self.image_size} is not between 1 and 65535 pixels")
        if not 1 <= self.quality <= 100:
            raise SettingError(f"quality {self.quality} is not between 1 and 100")
        if self.shard_bytes < 1 << 20:
            raise SettingError(f"shard size {self.shard_bytes} bytes is below 1 MiB")
        if not self.prefix or "/" in self.prefix or self.prefix.startswith("."):
            raise SettingError(f"prefix {self.prefix!r} cannot start a file name")
        for name, dtype in self.casts:
            _check_cast(name, dtype)
        if len(dict(self.casts)) < len(self.casts):
            raise SettingError(f"an array is cast twice in {self.casts}", advice="Give one dtype for each array.")
        if self.casts and self.arrays == "keep":
            raise SettingError(
                "a cast needs arrays='raw' or 'zstd'", advice="NPZ parts left as they are keep their dtype."
            )


def _check_cast(name: str, dtype: str) -> None:
    try:
        numeric = np.dtype(dtype).kind in "fiub"
    except (TypeError, ValueError, SyntaxError):  # numpy parses structured dtypes as Python
        numeric = False
    if not numeric:
        raise SettingError(f"cannot store array {name!r} as {dtype!r}", advice="Give a numeric dtype such as float16.")
