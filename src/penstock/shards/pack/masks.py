"""Shrinks masks together with the images they belong to, and refuses to shrink an image without its mask.

A mask holds class ids, so each pixel of the shrunk mask is one of the mask's own: the nearest to its centre.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import SampleError, SettingError
from penstock.shards.codecs.arrays import decode_npy, encode_npy
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.codecs.images import is_jpeg, open_with_pillow, shrunk_size
from penstock.shards.guards.jpeg import inspect_jpeg
from penstock.shards.guards.npy import inspect_npy
from penstock.shards.pack.options import PackOptions
from penstock.shards.pairing import canonical_suffix

Size = tuple[int, int]
"""(height, width)"""
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTH, _PNG_COLOUR = 24, 25
"""Bytes of a PNG with its bits per channel and its kind of colour; kind 0 is greyscale."""


def is_mask(suffix: str, options: PackOptions) -> bool:
    """Return whether a part is a declared mask."""
    return canonical_suffix(suffix) in map(canonical_suffix, options.masks)


def is_image(suffix: str) -> bool:
    """Return whether a part is an image by its suffix; its bytes may be those of another image format."""
    return codec_of(suffix) in ("jpeg", "image")


def mask_sizes(parts: Sequence[tuple[str, bytes]], options: PackOptions) -> dict[str, Size]:
    """Return the size of each mask after shrinking, by suffix; none if no image of the sample is shrunk.

    A mask must be as large as an image that is shrunk: a SampleError says that it is not. An image that is as large as
    one that is shrunk, and would keep its size, is a SettingError, since it may be a mask that was not declared.
    """
    images = [(suffix, data) for suffix, data in parts if is_image(suffix) and not is_mask(suffix, options)]
    shrunk = {}
    for suffix, data in images:
        if is_jpeg(data):
            size = _jpeg_size(suffix, data)
            if _new_size(size, options) != size:
                shrunk[_unturned(size)] = suffix
    if not shrunk:
        return {}
    for suffix, data in images:
        if not is_jpeg(data) and (image := shrunk.get(_unturned(_image_size(suffix, data)))) is not None:
            raise SettingError(
                f"image {image!r} would be shrunk, and image {suffix!r} of the same size would not",
                member=suffix,
                stage="pack",
                advice=f"If it is a mask of class ids, give --mask {suffix}; if it is a photograph, store it as JPEG.",
            )
    sizes = {}
    for suffix, data in parts:
        if is_mask(suffix, options):
            size = _mask_size(suffix, data)
            if _unturned(size) not in shrunk:
                raise SampleError(
                    f"the mask is {size[0]}×{size[1]}, and no image that is shrunk has this size",
                    member=suffix,
                    stage="pack",
                    advice="Leave the sample out, or store the mask in the size of its image",
                )
            sizes[suffix] = _new_size(size, options)
    return sizes


def shrink_mask(suffix: str, data: bytes, size: Size) -> bytes:
    """Return a PNG or NPY mask with this size; a PNG keeps its mode and its palette."""
    if codec_of(suffix) == "npy":
        array = decode_npy(data)
        return encode_npy(array[_nearest(size[0], array.shape[0])[:, None], _nearest(size[1], array.shape[1])])
    if not data.startswith(_PNG):
        raise _refusal("is no PNG, and other formats do not keep class ids for certain")
    if data[_PNG_DEPTH : _PNG_DEPTH + 1] == b"\x10" and data[_PNG_COLOUR : _PNG_COLOUR + 1] != b"\0":
        raise _refusal("has colours of 16 bits, of which 8 would be lost")
    with open_with_pillow(data) as image:
        shrunk = image.resize((size[1], size[0]), resample=0)  # nearest
        if image.mode == "P":  # Pillow gives an index the bits that the palette needs, and cuts off larger indices
            palette, colours = image.getpalette(), shrunk.getextrema()[1] + 1
            shrunk.putpalette(palette + [0] * (3 * colours - len(palette)))
        out = io.BytesIO()
        shrunk.save(out, "PNG")
    return out.getvalue()


def _new_size(size: Size, options: PackOptions) -> Size:
    assert options.image_size is not None
    return shrunk_size(*size, options.image_size, options.side)


def _unturned(size: Size) -> Size:
    """Return the same size for an image and for one turned by 90°: a mask may be stored as its image is shown."""
    return max(size), min(size)


def _mask_size(suffix: str, data: bytes) -> Size:
    if codec_of(suffix) == "npy":
        shape = inspect_npy(data).shape
        if len(shape) != 2:
            raise _refusal(f"is an array of shape {shape} and not (height, width)").at(member=suffix)
        return shape[0], shape[1]
    if is_jpeg(data):
        raise _refusal("is a JPEG, which does not keep class ids").at(member=suffix)
    return _image_size(suffix, data)


def _jpeg_size(suffix: str, data: bytes) -> Size:
    try:
        info = inspect_jpeg(data)
    except SampleError as error:
        raise error.at(member=suffix) from error
    return info.height, info.width


def _image_size(suffix: str, data: bytes) -> Size:
    try:
        with open_with_pillow(data) as image:
            return image.height, image.width
    except SampleError as error:
        raise error.at(member=suffix) from error


def _nearest(count: int, original: int) -> NDArray[Any]:
    """Return the pixels of the original that are nearest to the centres of `count` pixels, as Pillow chooses them."""
    return np.minimum(((np.arange(count) + 0.5) * (original / count)).astype(np.int64), original - 1)


def _refusal(what: str) -> SampleError:
    return SampleError(f"the mask {what}", stage="pack", advice="Store masks as PNG, or as .npy of (height, width)")
