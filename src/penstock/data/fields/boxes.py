"""The field of bounding boxes, moved with the image they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Bools, Floats
from penstock.data.fields.base import Field, SampleContext
from penstock.data.fields.geometry import ImageGeometry
from penstock.data.fields.label import Classes, class_numbers, label_number, read_classes
from penstock.data.fields.text import json_value, parse_json, shown
from penstock.errors import DecodeError, SettingError

_FORMATS = ("xyxy", "xywh", "cxcywh")
_MAX_COORDINATE = 1e9
"""No image is so large; NaN and infinity are not within it either."""


@dataclass(frozen=True)
class Boxes(Field):
    """`Boxes(".json", key="boxes", like="image")`: float32, (n, 4), as x1, y1, x2, y2 in pixels of the output.

    Boxes are given in pixels of the original (after the EXIF rotation, if the image field applies that), and take the
    same window, size, mirroring and padding as their image. They are clipped to the part of the output that the image
    covers. A box is dropped, with its label, if no more than `min_visible` of its area is left, or if its width or
    height is 0. Boxes are delivered in a list, because samples have different numbers of them.

    Args:
        suffix: The JSON part to read, or several alternatives.
        key: Where the list of boxes is in the JSON: a key, or keys joined by dots. In a list, a key selects the value
            of each element, so "objects.bbox" reads `{"objects": [{"bbox": […]}, …]}`. None: the JSON is the list.
        like: Name of the image field. None: the boxes are delivered as x1, y1, x2, y2, but not moved, clipped or
            dropped.
        format: What the four numbers of a box are: "xyxy" (two corners), "xywh" (the upper left corner and the size) or
            "cxcywh" (the centre and the size).
        labels: Where the labels of the boxes are, in the same JSON. Each sample is then a dict of "boxes" and "labels",
            int64, (n,).
        classes: The names of all classes, or a file with one name per line, if labels are names; as for `Label`.
        min_visible: Least fraction of a box's area that must be left, not included: 0 keeps all that is left.
        optional: Whether a sample may have no such part. It then gets None.
    """

    suffix: str | tuple[str, ...]
    key: str | None = None
    like: str | None = None
    format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy"
    labels: str | None = None
    classes: Classes = None
    min_visible: float = 0.0
    optional: bool = False

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise SettingError(f"format {self.format!r} is not known", advice=f"Use one of {', '.join(_FORMATS)}")
        if not 0 <= self.min_visible < 1:
            raise SettingError(f"min_visible={self.min_visible} is not a fraction", advice="Use 0.3, for example")
        if self.min_visible and self.like is None:
            raise SettingError("min_visible has no meaning without an image", advice="Name the image with like")
        if self.classes is not None and self.labels is None:
            raise SettingError("classes are the names of labels", advice="Say with labels where these are")
        object.__setattr__(self, "classes", read_classes(self.classes))

    @property
    def fixed_shape(self) -> bool:
        """Always false: samples have different numbers of boxes."""
        return False

    def decode_value(
        self, suffix: str, data: memoryview, sample: SampleContext
    ) -> NDArray[np.float32] | dict[str, NDArray[Any]]:
        """Return the boxes, or a dict of the boxes and their labels."""
        document = parse_json(data)
        boxes, kept = self._moved(_corners(json_value(document, self.key), self.format), sample)
        if self.labels is None:
            return boxes[kept]
        found = json_value(document, self.labels)
        if not isinstance(found, list) or len(found) != len(boxes):
            count = f"{len(found)} labels" if isinstance(found, list) else shown(found)
            raise DecodeError(f"{len(boxes)} boxes have {count}", stage="decode")
        labels = [label_number(label, "int64", self._numbers, f"label {n}") for n, label in enumerate(found)]
        return {"boxes": boxes[kept], "labels": np.array(labels, np.int64)[kept]}

    @cached_property
    def _numbers(self) -> Mapping[str, int] | None:
        return class_numbers(self.classes)

    def _moved(self, corners: Floats, sample: SampleContext) -> tuple[NDArray[np.float32], Bools]:
        """Return the boxes in the output, and which of them are kept."""
        if self.like is None:
            return corners.astype(np.float32), np.ones(len(corners), bool)
        return move_boxes(corners, sample.geometries[self.like], self.min_visible)


def move_boxes(corners: Floats, geometry: ImageGeometry, min_visible: float) -> tuple[NDArray[np.float32], Bools]:
    """Move boxes (x1, y1, x2, y2) of the original into the output, clipped, and return which of them to keep."""
    (scale_y, scale_x), (offset_y, offset_x) = geometry.scale, geometry.offset
    moved = corners * (scale_x, scale_y, scale_x, scale_y) + (offset_x, offset_y, offset_x, offset_y)
    if geometry.mirrored:
        moved = moved[:, [2, 1, 0, 3]]
    rows, columns = geometry.covered
    top, left = geometry.pad_top, geometry.pad_left
    clipped = moved.clip((left, top, left, top), (left + columns, top + rows, left + columns, top + rows))
    boxes = clipped.astype(np.float32)
    has_area = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    return boxes, has_area & (_areas(clipped) > min_visible * _areas(moved))


def _areas(boxes: Floats) -> Floats:
    return np.asarray((boxes[:, 2:] - boxes[:, :2]).prod(axis=1))


def _corners(found: Any, form: str) -> Floats:
    """Return the boxes of a JSON list as x1, y1, x2, y2; a DecodeError names a box that is none."""
    if not isinstance(found, list):
        raise DecodeError(f"the boxes are {shown(found)} where a list is expected", stage="decode")
    for number, box in enumerate(found):
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_coordinate, box)):
            raise DecodeError(
                f"box {number} is {shown(box)} where four coordinates in pixels are expected", stage="decode"
            )
    boxes = np.array(found, np.float64).reshape(-1, 4)
    first, second = boxes[:, :2], boxes[:, 2:]
    inverted = np.flatnonzero((second < (first if form == "xyxy" else 0)).any(axis=1))
    if len(inverted):
        number = int(inverted[0])
        reason = f"box {number} is {shown(found[number])}: as {form}, its width or height is below 0"
        raise DecodeError(reason, stage="decode", advice=f"Use one of format={', '.join(_FORMATS)}")
    if form == "xyxy":
        return boxes
    corner = first - second / 2 if form == "cxcywh" else first
    return np.hstack((corner, corner + second))


def _is_coordinate(value: Any) -> bool:
    return type(value) in (int, float) and -_MAX_COORDINATE <= value <= _MAX_COORDINATE
