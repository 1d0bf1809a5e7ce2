"""The options of `penstock shards pack`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np

from penstock.errors import SettingError

ArrayCodec = Literal["keep", "raw", "zstd"]
Side = Literal["long", "short"]
OnBad = Literal["raise", "skip"]
SourceFormat = Literal["auto", "files", "parquet", "mds", "tfrecord", "lmdb", "hdf5"]
Labels = Literal["auto", "folder", "none"]
Role = Literal["image", "label", "text", "array", "bytes", "json"]


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How samples are converted and divided between shards. The values are checked when the object is made."""

    arrays: ArrayCodec = "keep"
    """How NPZ and NPY parts are stored: "keep" leaves them as they are, "raw" and "zstd" store one NPY file per array,
    the latter compressed."""
    image_size: int | None = None
    """JPEGs are shrunk until `side` has this many pixels; smaller ones are copied as they are. None: no shrinking."""
    side: Side = "long"
    """The side of an image that `image_size` applies to."""
    quality: int = 90
    """Quality of re-encoded JPEGs, 1 to 100. With 90, the second encoding loses too little to affect training."""
    casts: tuple[tuple[str, str], ...] = ()
    """(array name, dtype) pairs: each of these arrays is stored in that dtype."""
    shard_bytes: int = 256 << 20
    """Size at which a shard is closed: large enough for long reads, small enough for many lanes."""
    prefix: str = "shard"
    """Beginning of the shards' file names."""
    on_bad: OnBad = "raise"
    """"raise": a bad sample ends the run; "skip": it is left out and listed."""
    require: tuple[str, ...] = ()
    """Suffixes that every sample must have; names are split by them too. If empty, both are inferred."""
    masks: tuple[str, ...] = ()
    """Suffixes of masks: they are shrunk with their image, each pixel of the result being one of the mask's."""
    labels: Labels = "auto"
    """"folder": the name of a loose file's top folder is its class; "auto": if the files are a folder of images per
    class; "none": no labels are made."""
    format: SourceFormat = "auto"
    """How the source is read: "files" are loose files, "auto" goes by names and content."""
    columns: tuple[tuple[str, Role | None], ...] = ()
    """(column name, role) pairs: only these columns of records are packed. A role of None is inferred, and so are both
    if there are no pairs."""

    def output_settings(self) -> dict[str, object]:
        """Return the options that affect the bytes of the output: all but `on_bad`."""
        return {name: value for name, value in asdict(self).items() if name != "on_bad"}

    def __post_init__(self) -> None:
        for name, value, known in (
            ("arrays", self.arrays, get_args(ArrayCodec)),
            ("side", self.side, get_args(Side)),
            ("on_bad", self.on_bad, get_args(OnBad)),
            ("labels", self.labels, get_args(Labels)),
            ("format", self.format, get_args(SourceFormat)),
            *(("role", role, get_args(Role)) for _, role in self.columns if role is not None),
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
        if len(dict(self.columns)) < len(self.columns):
            raise SettingError("a column is named twice", advice="Name each column once.")
        if self.masks and self.image_size is None:
            raise SettingError("masks are shrunk with their images, which keep their size", advice="Give --image-size.")
        if not all(self.masks):
            raise SettingError("the suffix of a mask is empty")
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
