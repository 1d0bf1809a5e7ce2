"""From a sample's bytes to its arrays: by Penstock's fields, or as one does it with Pillow and numpy."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow

from benchmarks.peers.kinds import Kind
from benchmarks.peers.task import Decoder
from penstock import Array, Image, Label
from penstock.data.fields.base import as_suffixes
from penstock.data.fields.image import fit_geometry

Arrays = dict[str, NDArray[Any]]
Tensors = dict[str, Any]
ToArrays = Callable[[Kind, Mapping[str, Any]], Arrays]


def ours(kind: Kind, parts: Mapping[str, Any]) -> Arrays:
    """Penstock's decode functions, wherever a peer lets a user's function run."""
    arrays = {}
    for name, field in kind.fields.items():
        suffix = field.suffixes[0]
        arrays[name] = field.decode_value(suffix, memoryview(parts[suffix]))
    return arrays


def own(kind: Kind, parts: Mapping[str, bytes]) -> Arrays:
    """Pillow, numpy and json: what users of loaders without a decoder write."""
    return assemble(kind, {suffix: opened(suffix, data) for suffix, data in parts.items()})


def opened(suffix: str, data: bytes | memoryview) -> Any:
    """One part as its usual library gives it."""
    if suffix.endswith(".jpg"):
        return Pillow.open(io.BytesIO(data))
    if suffix.endswith(".npz"):
        return np.load(io.BytesIO(data))
    return json.loads(bytes(data))  # some peers hand over views


def assemble(kind: Kind, values: Mapping[str, Any]) -> Arrays:
    """The agreed outputs from those parts that are here, opened: a picture, a mapping of arrays, a number, a JSON."""
    arrays: Arrays = {}
    for name, field in kind.fields.items():
        assert isinstance(field, Image | Array | Label)
        suffix = as_suffixes(field.suffix)[0]
        if suffix not in values:
            continue
        value = values[suffix]
        if isinstance(field, Image):
            arrays[name] = fitted(field, value)
        else:
            arrays[name] = np.asarray(value if field.key is None else value[field.key])
    return arrays


def fitted(field: Image, picture: Pillow.Image) -> NDArray[np.uint8]:
    """Decode in full, resize bilinearly, cut or pad, and separate the colours."""
    size = (field.size, field.size) if isinstance(field.size, int) else field.size
    assert size is not None
    at = fit_geometry(picture.height, picture.width, size, field.fit)
    picture = picture.convert("RGB")
    if picture.size != (at.width, at.height):
        picture = picture.resize((at.width, at.height), Pillow.Resampling.BILINEAR)
    rows, columns = at.covered
    return planes(np.asarray(picture)[at.top : at.top + rows, at.left : at.left + columns], size)


def planes(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """(height, width, 3) to (3, *size), black where there is no picture."""
    out = np.empty((3, *size), np.uint8)
    split_into(pixels, out)
    return out


def split_into(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """The quick way to separate the colours, so that no peer loses by it."""
    rows, columns = pixels.shape[:2]
    out[:, rows:] = 0
    out[:, :rows, columns:] = 0
    for plane, colour in zip(out, cv2.split(pixels), strict=True):
        plane[:rows, :columns] = colour


TO_ARRAYS: Mapping[Decoder, ToArrays] = {"own": own, "ours": ours}


def as_tensors(key: str, arrays: Arrays) -> Tensors:
    """A sample for torch's collate function: arrays would travel through pipes, tensors go into shared memory."""
    return {"__key__": key, **{name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}}


def empty_batch(kind: Kind, samples: int) -> Arrays:
    """For those who can decode straight into a batch."""
    return {name: np.empty((samples, *shape), dtype) for name, (shape, dtype) in kind.outputs.items()}


def our_batch(kind: Kind, samples: Sequence[Mapping[str, Any]]) -> Arrays:
    """Penstock's decode functions, each sample into its place."""
    batch = empty_batch(kind, len(samples))
    for place_in_batch, parts in enumerate(samples):
        for name, field in kind.fields.items():
            suffix = field.suffixes[0]
            field.decode_into(suffix, memoryview(parts[suffix]), batch[name][place_in_batch, ...])
    return batch


def with_keys(keys: Sequence[str], arrays: Arrays) -> Tensors:
    """A batch as it is handed over."""
    return {"__key__": list(keys), **{name: torch.from_numpy(array) for name, array in arrays.items()}}
