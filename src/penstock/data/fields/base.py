"""The base of all fields, what a field may know of its sample, and the note on an image that the GPU is to decode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.geometry import ImageGeometry
from penstock.errors import SampleError, SettingError
from penstock.shards.codecs.arrays import NpzArchive


class EncodedImage(NamedTuple):
    """A note that a slot holds a JPEG, to be decoded on the GPU, instead of its pixels."""

    length: int
    """Bytes of the JPEG, from the start of the slot."""
    height: int
    width: int
    top: int = 0
    """The window of the image that is resized, and whether the result is mirrored."""
    left: int = 0
    window_height: int = 0
    window_width: int = 0
    mirrored: int = 0


NOT_ENCODED = EncodedImage(0, 0, 0)
"""The note for a slot that holds pixels."""


@dataclass(slots=True)
class SampleContext:
    """Facts about a sample that a field may use besides its own part."""

    draws: Sequence[float] = ()
    """The field's `random_numbers` random numbers, at least 0 and below 1. They depend on the loader's seed, the epoch,
    the sample and the field's name only."""
    geometries: dict[str, ImageGeometry] = field(default_factory=dict)
    """The geometry of each image field of the sample, by name; for fields that are declared `like` an image."""
    geometry: ImageGeometry | None = None
    """Set by an image field: the geometry of the image that it has just decoded."""
    npz: NpzArchive | None = None
    """The NPZ that was opened last, since several fields may read arrays of one part."""


class Field(ABC):
    """The declaration of one entry of a batch: which part of a sample it reads, and how that becomes a value.

    A field of your own is a subclass with a `suffix` and a `decode_value`. It must be picklable, and must not import
    torch, because workers do not:

        @dataclass(frozen=True)
        class Wav(penstock.Field):
            suffix: str = ".wav"

            def decode_value(self, suffix, data, sample):
                with wave.open(io.BytesIO(data)) as file:
                    return np.frombuffer(file.readframes(16000), np.int16)

    All samples must have values of one shape and dtype, unless `fixed_shape` is False: values are then delivered as a
    list.
    """

    suffix: str | tuple[str, ...]
    optional: bool = False
    """Whether a sample may lack the part."""
    random_numbers: int = 0
    """How many random numbers the field uses for each sample."""
    has_geometry: bool = False
    """Whether the field sets `SampleContext.geometry`, so that other fields may be `like` it."""
    like: str | None = None
    """Name of an image field that must be decoded before this field, because this field uses its geometry."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the parts that the field can be read from, in order of preference; a sample has one of them.

        No suffix: the field reads no part.
        """
        return as_suffixes(self.suffix)

    @property
    def fixed_shape(self) -> bool:
        """Whether all samples have one shape and go into a slab; other values are delivered as lists."""
        return True

    @abstractmethod
    def decode_value(self, suffix: str, data: memoryview, sample: SampleContext) -> Any:
        """Decode the part into a value of its own: `data` is only valid during the call."""

    def decode_into(
        self, suffix: str, data: memoryview, slot: NDArray[np.generic], sample: SampleContext
    ) -> EncodedImage | None:
        """Decode the part into its slot; a SampleError names the expected and the found shape if it does not fit."""
        write_slot(self.decode_value(suffix, data, sample), slot)
        return None

    def missing_value(self, sample: SampleContext) -> Any:
        """Return the value for a sample that lacks the part, where the field is optional."""
        return None


def write_slot(value: Any, slot: NDArray[np.generic]) -> None:
    """Write a value into its slot; a SampleError names the expected and the found shape if it does not fit."""
    array = np.asarray(value)
    if array.shape != slot.shape or array.dtype.newbyteorder("=") != slot.dtype:
        found = "missing" if value is None else f"{array.dtype}{list(array.shape)}"
        raise SampleError(
            f"value is {found} where {slot.dtype}{list(slot.shape)} is expected",
            stage="decode",
            advice="Give every sample one shape and dtype, or set fixed_shape = False in the field",
        )
    slot[...] = array


def fields_with_parts(fields: Mapping[str, Field]) -> list[str]:
    """Return the names of the fields that read a part, in order: the i-th of them is read from part i of a row."""
    return [name for name, each in fields.items() if each.suffixes]


def has_fixed_shape(fields: Mapping[str, Field], name: str) -> bool:
    """Return whether all values of a field have one shape: a mask has one only if its image has one."""
    found = fields[name]
    return found.fixed_shape and (found.like is None or fields[found.like].fixed_shape)


def check_likes(fields: Mapping[str, Field]) -> None:
    """Raise a SettingError if a field is declared `like` a field that is no image."""
    images = [name for name, each in fields.items() if each.has_geometry]
    for name, each in fields.items():
        if each.like is not None and each.like not in images:
            raise SettingError(
                f"{name} is like={each.like!r}, which is not an image field",
                advice=f"Image fields here: {', '.join(images) or 'none'}",
            )


def check_fill(fill: Any, optional: bool) -> None:
    """Raise a SettingError if a value is given for missing parts, where none may be missing."""
    if fill is not None and not optional:
        raise SettingError(f"fill={fill!r} is for samples that lack the part", advice="Give optional=True as well")


def as_suffixes(suffix: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return one suffix or several as a tuple."""
    return (suffix,) if isinstance(suffix, str) else tuple(suffix)
