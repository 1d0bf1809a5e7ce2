"""Lightning's bars: tqdm's with `v_num=`, or rich's `Epoch 0/9 ━━━ 40/1095 0:00:03 • 0:01:37 10.84it/s v_num: 3`."""

from __future__ import annotations

import re

from penstock.diagnose.training_log.formats import tqdm
from penstock.diagnose.training_log.formats.numbers import clock, count
from penstock.diagnose.training_log.lines import Bar

NAME = "Lightning"
_RICH = re.compile(
    r"Epoch \d+/-?\d+ .*?(\d{1,12})/(\d{1,12}) +(\d{1,4}:\d\d:\d\d) • (?:\d{1,4}:\d\d:\d\d|-:--:--) +\S*it/s"
)


def parse(line: str) -> Bar | None:
    """A bar of either kind; only their words tell them from others'."""
    if "it/s" not in line:
        return None
    if "•" in line:
        found = _RICH.search(line)
        return found and Bar(done=count(found[1]), total=count(found[2]), elapsed_s=clock(found[3]))
    return tqdm.parse(line) if "v_num=" in line else None
