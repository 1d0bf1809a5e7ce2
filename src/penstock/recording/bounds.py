"""Ranges of the times and numbers in a recording.

The reader skips a line with a number outside its range: the line is damaged, and the number would corrupt every sum.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from penstock.recording.format import (
    AnyLine,
    EndLine,
    EpochEndLine,
    EpochStartLine,
    EventLine,
    FetchLine,
    HopsLine,
    LoaderLine,
    RunLine,
    StackSamplesLine,
    StepLine,
    StorageLine,
    SystemLine,
)

LARGEST = 10 * 365 * 86400.0
"""Ten years in seconds: no run takes longer, and no count of batches is larger."""


def is_plausible(line: AnyLine) -> bool:
    """Return whether all numbers of the line that are checked lie between 0 and LARGEST."""
    numbers = CHECKED_NUMBERS[type(line)](line)
    return not numbers or (min(numbers) >= 0 and max(numbers) <= LARGEST)


CHECKED_NUMBERS: dict[type[AnyLine], Callable[[Any], tuple[float, ...]]] = {
    RunLine: lambda run: (run.rank, run.world_size - 1),
    LoaderLine: lambda loader: (loader.loader, loader.dataset_size or 0, loader.batches or 0),
    EpochStartLine: lambda line: (line.loader, line.epoch, line.at_s),
    StorageLine: lambda line: (line.loader, line.readers),
    EpochEndLine: lambda line: (line.loader, line.epoch, line.at_s),
    StepLine: lambda step: (
        step.loader,
        step.epoch,
        step.batch,
        step.at_s,
        step.wait_s,
        step.idle_s or 0.0,
        step.step_s,
        step.samples or 0,
        step.ready or 0,
        step.outstanding or 0,
        (step.worker or 0) + 1,  # -1: the main process
        *step.phases.values(),
        *step.device_phases.values(),
    ),
    FetchLine: lambda fetch: (
        fetch.loader,
        fetch.epoch,
        fetch.batch + 1,
        fetch.worker + 1,
        fetch.at_s,
        fetch.fetch_s,
        fetch.collate_s,
        fetch.cpu_s,
        fetch.queue_s,
        fetch.gc_s,
        fetch.samples,
        fetch.slowest_s,
        fetch.reads,
        fetch.opens,
    ),
    StackSamplesLine: lambda line: (line.at_s, line.samples, *line.states.values(), *line.functions.values()),
    HopsLine: lambda hops: (
        hops.loader,
        hops.at_s,
        hops.workers,
        hops.ready,
        *chain(*hops.hops.values()),
        *(hops.gpu_times or ()),
    ),
    SystemLine: lambda system: (
        system.at_s,
        system.seconds or -1,  # an interval of length 0 has no rates
        system.cpu,
        system.iowait,
        system.steal,
        system.others_cpu,
        *(number for process in system.processes for number in (process.cpu, process.queue, process.cores or 0)),
    ),
    EventLine: lambda event: (event.at_s, event.seconds),
    EndLine: lambda end: (end.at_s, end.dropped),
}
"""The numbers of each kind of line that must lie between 0 and LARGEST."""
