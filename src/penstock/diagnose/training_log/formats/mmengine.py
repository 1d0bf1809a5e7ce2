"""MMEngine's lines, `Epoch(train) [1][ 50/500] lr: … time: 0.3 data_time: 0.1 …`, also by iteration, and mmcv's.

`time` and `data_time` are means over the logger's window; whether that is all steps since the last line depends on the
run's settings, so the diagnosis compares their sum with the clock.
"""

from __future__ import annotations

import re

from penstock.diagnose.training_log.formats.numbers import NUMBER, count, seconds
from penstock.diagnose.training_log.lines import Meter

NAME = "MMEngine"
_PLACE = re.compile(r"(?:Epoch(?:\(train\))? *\[(\d+)\]|Iter(?:\(train\))?) *\[ *(\d+)/ *(\d+)\]")
_TIME = re.compile(rf"\btime: *({NUMBER})")
_DATA = re.compile(rf"\bdata_time: *({NUMBER})")


def parse(line: str) -> Meter | None:
    """A line of training with both times; validation's are none."""
    if "data_time:" not in line:
        return None
    place, time, data = _PLACE.search(line), _TIME.search(line), _DATA.search(line)
    if place is None or time is None or data is None:
        return None
    epoch, step, total = place.groups()
    return Meter(
        epoch=None if epoch is None else count(epoch),
        step=count(step),
        total=count(total) if epoch is not None else None,
        time_s=seconds(time[1]),
        wait_s=seconds(data[1]),
    )
