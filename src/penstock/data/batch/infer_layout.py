"""What a batch will look like, judged by its first samples: slots for what has one shape, room for what has many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from penstock.core.slab_layout import SlabLayout, SlotSpec
from penstock.data.fields.base import Field
from penstock.data.fields.gpu_image import GpuDecodedImage

LOOKS = 4
"""Samples whose sizes are compared, where sizes differ: one alone may be the smallest of all."""


def infer_layout(samples: Iterator[Mapping[str, Any]], fields: Mapping[str, Field], batch_size: int) -> SlabLayout:
    """The first sample says which arrays there are; an array without a fixed shape gets 1.5 times the room that the
    largest of the first few needs, and the rare one that needs more goes over the worker's pipe."""
    slots: dict[str, SlotSpec] = {}
    largest: dict[str, int] = {}
    for name, value in next(samples).items():
        field = fields.get(name)
        if field is not None and not field.fixed_shape:
            if isinstance(value, np.ndarray):
                largest[name] = value.nbytes
        elif isinstance(value, np.ndarray | np.generic):
            slots[name] = SlotSpec(value.shape, value.dtype.str)
    for sample in islice(samples, LOOKS - 1) if largest else ():
        largest = {name: max(size, getattr(sample.get(name), "nbytes", 0)) for name, size in largest.items()}
    rooms = {name: max(1, size * 3 // 2) for name, size in largest.items()}
    noted = tuple(name for name in slots if isinstance(fields.get(name), GpuDecodedImage))
    return SlabLayout(slots, batch_size, rooms, noted)
