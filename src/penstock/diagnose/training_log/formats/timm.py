"""timm's meters, `Train: 0 [ 50/1251 ( 4%)] … Time: 0.345s, 741.2/s (0.402s, 636.1/s) … Data: 0.011 (0.050)`.

The same meters as in PyTorch's ImageNet example (`Epoch: [0][ 50/5005] Time 0.3 (0.4) Data 0.0 (0.1)`) and its many
heirs: the last step's value, and in brackets the mean since the epoch began. Steps count from 0.
"""

from __future__ import annotations

import re

from penstock.diagnose.training_log.formats.numbers import NUMBER, count, seconds
from penstock.diagnose.training_log.lines import Meter

NAME = "timm"
_PLACE = re.compile(r"(?:Train: *(\d+)|Epoch: *\[(\d+)\]) *\[ *(\d+)/ *(\d+)")
_TIME = re.compile(rf"\bTime:? +({NUMBER})s?(?:, *({NUMBER})/s)? *\( *({NUMBER})s?(?:, *{NUMBER}/s)?\)")
_DATA = re.compile(rf"\bData:? +({NUMBER}) *\( *({NUMBER})\)")
_SAMPLES_OFF = 0.02
"""Samples per step come from rate × time, both rounded: taken when the product is so close to a whole number."""


def parse(line: str) -> Meter | None:
    """A line of meters with both times."""
    if "Data" not in line or "Time" not in line:
        return None
    place, time, data = _PLACE.search(line), _TIME.search(line), _DATA.search(line)
    if place is None or time is None or data is None:
        return None
    return Meter(
        epoch=count(place[1] or place[2]),
        step=count(place[3]),
        total=count(place[4]),
        time_s=seconds(time[1]),
        wait_s=seconds(data[1]),
        running_time_s=seconds(time[3]),
        running_wait_s=seconds(data[2]),
        samples=_samples(time[1], time[2]),
    )


def _samples(time: str, rate: str | None) -> int | None:
    if rate is None:
        return None
    product = seconds(time) * seconds(rate)
    whole = round(product)
    return whole if whole and abs(product - whole) / whole < _SAMPLES_OFF else None
