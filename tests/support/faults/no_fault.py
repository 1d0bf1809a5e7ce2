"""Trainings without a fault, in which the diagnosis must find nothing."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.faults.fault import Case, Step, Training, fault
from tests.support.faults.image_dataset import Decode, image_dataset, jpeg, loader


@fault(expect=None)
def healthy(case: Case) -> Iterator[Training]:
    """The workers make batches faster than the loop needs them."""
    yield Training(loader=loader(image_dataset(case), shuffle=True))


@fault(expect=None)
def compute_bound(case: Case) -> Iterator[Training]:
    """Samples take work, but the step takes longer, on a core of its own."""
    extra = Decode(jpeg(160, case.seed), case.level(mild=0.0005, severe=0.001))
    yield Training(loader=loader(image_dataset(case, extra)), step=Step(cpu_s=0.018, device_s=0.0))
