"""tqdm's bar, `2950/4570 [34:15<27:54, 1.03s/it, …, data=576, bkbn=25, bwd=119, opt=1]`, with or without a postfix.

The rate it prints is smoothed over its last refreshes, so it is not used: steps done over time elapsed are.
"""

from __future__ import annotations

import re

from penstock.diagnose.training_log.formats.numbers import NUMBER, clock, count, seconds
from penstock.diagnose.training_log.lines import Bar

NAME = "tqdm"
_BAR = re.compile(r"(\d{1,12})/(\d{1,12}) \[([\d:]{4,12})<[^,\]]{1,40}, *[^,\]]{1,24}(?:it/s|s/it)(?:, ?([^\]]*))?\]")
_POSTFIX = re.compile(rf"([\w./-]{{1,64}})(\(ms\)|\(s\))?=({NUMBER})(ms|s)?(?=[,\s\]]|$)")
_NOT_TRAINING = re.compile(
    r"\b(?:val|valid|validation|validating|eval|evaluating|test|testing|sanity)\b", re.IGNORECASE
)
_WAITS = {"data": 1e-3, "data_ms": 1e-3, "data_s": 1.0, "data_time": 1.0}
"""Names of the wait in a postfix, and their unit where none is written: whole milliseconds are the custom."""
_OWN = "tb"
"""The time of the step without the wait, in the reports' logs."""
_PHASES = {"fwd", "forward", "bwd", "backward", "opt", "optimizer", "h2d"}
_COUNTERS = {"epoch", "step", "iter", "it", "v_num", "rank"}


def parse(line: str) -> Bar | None:
    """A bar of a training loop; those of validation are none."""
    if "it/s" not in line and "s/it" not in line:
        return None
    found = _BAR.search(line)
    if found is None or _NOT_TRAINING.search(line, 0, found.start()):
        return None
    done, total, elapsed, postfix = found.groups()
    wait, own, phases = _times(postfix or "")
    return Bar(
        done=count(done), total=count(total), elapsed_s=clock(elapsed), wait_s=wait, phases=tuple(phases), own_s=own
    )


def _times(postfix: str) -> tuple[float | None, float | None, list[tuple[str, float]]]:
    """The wait, the step without it, and the phases: by custom what is named after the wait, in whole milliseconds.

    Losses and other metrics have a decimal point.
    """
    wait: float | None = None
    own: float | None = None
    phases: list[tuple[str, float]] = []
    for name, bracket, number, suffix in _POSTFIX.findall(postfix):
        value = number.rstrip(",")
        unit = suffix or bracket.strip("()")
        unit_s = {"ms": 1e-3, "s": 1.0, "": _WAITS.get(name, 1e-3)}[unit]
        if name in _WAITS:
            wait = seconds(value, unit_s)
        elif name == _OWN and unit:
            own = seconds(value, unit_s)
        elif wait is not None and (unit or name in _PHASES or (value.isdigit() and name not in _COUNTERS)):
            phases.append((name, seconds(value, unit_s)))
    return wait, own, phases
