"""Trainings with nothing wrong: a diagnosis must say so."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.faults.fault import Case, Step, Training, fault
from tests.support.faults.material import Decode, jpeg, loader, pictures


@fault(expect=None)
def healthy(case: Case) -> Iterator[Training]:
    """Supply has room to spare."""
    yield Training(loader=loader(pictures(case), shuffle=True))


@fault(expect=None)
def compute_bound(case: Case) -> Iterator[Training]:
    """Samples take work, but the step takes longer, on a core of its own."""
    work = Decode(jpeg(160, case.seed), case.level(mild=0.0005, severe=0.001))
    yield Training(loader=loader(pictures(case, work)), step=Step(cpu_s=0.018, device_s=0.0))
