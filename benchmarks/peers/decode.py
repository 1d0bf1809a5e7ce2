"""Turns the parts of a sample into arrays: by Penstock's fields, or with Pillow and numpy, as a user would write it."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow

from benchmarks.peers.kinds import Kind
from benchmarks.peers.task import Decoder
from penstock import Array, Field, Image, Label
from penstock.data.fields.base import SampleContext, as_suffixes
from penstock.data.fields.geometry import fit_geometry

Arrays = dict[str, NDArray[Any]]
Tensors = dict[str, Any]
ToArrays = Callable[[Kind, Mapping[str, Any]], Arrays]


def decode_with_penstock(kind: Kind, parts: Mapping[str, Any]) -> Arrays:
    """Decode a sample with Penstock's fields, for every peer that can call a function of the user."""
    arrays = {}
    for name, field in kind.fields.items():
        suffix = field.suffixes[0]
        arrays[name] = field.decode_value(suffix, memoryview(parts[suffix]), random_context(field))
    return arrays


def random_context(field: Field) -> SampleContext:
    """Return a context with the random numbers that a field uses."""
    return SampleContext([random.random() for _ in range(field.random_numbers)])


def decode_with_pillow(kind: Kind, parts: Mapping[str, bytes]) -> Arrays:
    """Decode a sample with Pillow, numpy and json, as users of loaders without a decoder do."""
    return assemble(kind, {suffix: open_part(suffix, data) for suffix, data in parts.items()})


def open_part(suffix: str, data: bytes | memoryview) -> Any:
    """Return a part as its usual library opens it: a Pillow image, a mapping of arrays, or a JSON value."""
    if suffix.endswith(".jpg"):
        return Pillow.open(io.BytesIO(data))
    if suffix.endswith(".npz"):
        return np.load(io.BytesIO(data))
    return json.loads(bytes(data))  # some peers deliver a memoryview


def assemble(kind: Kind, values: Mapping[str, Any]) -> Arrays:
    """Return the agreed output of the fields whose parts are given; each part is opened as by `open_part`."""
    arrays: Arrays = {}
    for name, field in kind.fields.items():
        assert isinstance(field, Image | Array | Label)
        suffix = as_suffixes(field.suffix)[0]
        if suffix not in values:
            continue
        value = values[suffix]
        if isinstance(field, Image):
            arrays[name] = fit_image(field, value)
        else:
            arrays[name] = np.asarray(value if field.key is None else value[field.key])
    return arrays


def fit_image(field: Image, image: Pillow.Image) -> NDArray[np.uint8]:
    """Decode the image at full size, resize it bilinearly, crop or pad it, and separate the colour planes.

    With a RandomResizedCrop, the window is cut out and resized, as torchvision does it with Pillow.
    """
    size = (field.size, field.size) if isinstance(field.size, int) else field.size
    assert size is not None
    image = image.convert("RGB")
    if field.crop is not None:
        fit = field.geometry(image.height, image.width, random_context(field).draws)
        top, left, height, width = fit.window
        image = image.crop((left, top, left + width, top + height)).resize(size[::-1], Pillow.Resampling.BILINEAR)
        if fit.mirrored:
            image = image.transpose(Pillow.Transpose.FLIP_LEFT_RIGHT)
        return to_planes(np.asarray(image), size)
    fit = fit_geometry(image.height, image.width, size, field.fit)
    if image.size != (fit.width, fit.height):
        image = image.resize((fit.width, fit.height), Pillow.Resampling.BILINEAR)
    rows, columns = fit.covered
    return to_planes(np.asarray(image)[fit.cut_top : fit.cut_top + rows, fit.cut_left : fit.cut_left + columns], size)


def to_planes(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Turn (height, width, 3) into (3, *size), black where the image does not reach."""
    out = np.empty((3, *size), np.uint8)
    write_planes(pixels, out)
    return out


def write_planes(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Write the colour planes of (height, width, 3) into `out`, black where the image does not reach.

    `cv2.split` is a fast method, so that this step does not slow a peer down.
    """
    rows, columns = pixels.shape[:2]
    out[:, rows:] = 0
    out[:, :rows, columns:] = 0
    for plane, colour in zip(out, cv2.split(pixels), strict=True):
        plane[:rows, :columns] = colour


TO_ARRAYS: Mapping[Decoder, ToArrays] = {"own": decode_with_pillow, "ours": decode_with_penstock}


def as_tensors(key: str, arrays: Arrays) -> Tensors:
    """Return a sample for torch's collate function. Workers pass arrays through pipes, but tensors in shared memory."""
    return {"__key__": key, **{name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}}


def empty_batch(kind: Kind, samples: int) -> Arrays:
    """Return uninitialised arrays for a batch, for loaders that can decode straight into it."""
    return {name: np.empty((samples, *shape), dtype) for name, (shape, dtype) in kind.outputs.items()}


def decode_batch_with_penstock(kind: Kind, samples: Sequence[Mapping[str, Any]]) -> Arrays:
    """Decode samples with Penstock's fields, each straight into its place in the batch."""
    batch = empty_batch(kind, len(samples))
    for place_in_batch, parts in enumerate(samples):
        for name, field in kind.fields.items():
            suffix = field.suffixes[0]
            field.decode_into(
                suffix, memoryview(parts[suffix]), batch[name][place_in_batch, ...], random_context(field)
            )
    return batch


def with_keys(keys: Sequence[str], arrays: Arrays) -> Tensors:
    """Return a batch as every loader has to deliver it: tensors by field, and the keys."""
    return {"__key__": list(keys), **{name: torch.from_numpy(array) for name, array in arrays.items()}}
