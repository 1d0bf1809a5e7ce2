"""What `penstock run --probe compute` found in a script, read from its recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.probe.results import StepProbe, StepTime
from penstock.recording.format import EventLine
from penstock.recording.reader import Recording


class _ProbeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Of an event of the probe, as `observe.probing.begin` writes it."""

    stage: str
    steps: int = 0
    burners: int = 0
    samples: int | None = None
    device: str = "cpu"
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptProbe:
    """A script's step on a batch that is there already; None where it was not measured."""

    data: StepTime | None = None
    """With the script's own data, the waiting counted in."""
    alone: StepTime | None = None
    beside: StepTime | None = None
    burners: int = 0
    samples: int | None = None
    """In a batch."""
    device: str = "cpu"
    why: str = ""
    """Why something is missing, where the probe itself could say."""

    @property
    def step(self) -> StepProbe | None:
        """As `penstock.probe_step` has it."""
        if self.alone is None or self.beside is None:
            return None
        return StepProbe(
            alone=self.alone, beside=self.beside, burners=self.burners, samples=self.samples, device=self.device
        )


def script_probe(recording: Recording) -> ScriptProbe:
    """All that it got to; a line that was damaged is one that is missing."""
    found: dict[str, Any] = {}
    for event in recording.events:
        if event.what == "probe":
            found |= _read(event)
    return ScriptProbe(**found)


def _read(event: EventLine) -> dict[str, Any]:
    try:
        detail = msgspec.convert(event.detail, _ProbeEvent)
    except msgspec.ValidationError:
        return {}
    if detail.stage == "end":
        return {"why": detail.why}
    if detail.stage not in ("data", "alone", "beside") or detail.steps < 1 or event.seconds <= 0:
        return {}
    found: dict[str, Any] = {detail.stage: StepTime(detail.steps, event.seconds / detail.steps)}
    found |= {"samples": detail.samples, "device": detail.device}
    return found | ({"burners": detail.burners} if detail.stage == "beside" else {})
