"""The worker program where a collate_fn of the user makes whole batches, of a dataset's samples or of shards."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from penstock.core.contracts import BAD_SAMPLE, Extras, Task, TaskRunner
from penstock.data.batch.decoded_batch import replacement_slots, take_padding
from penstock.data.batch.pytree import ROOT
from penstock.errors import PenstockError, SampleError


class SampleMaker(Protocol):
    """Makes the samples of a task. Picklable."""

    def start(self, arena: memoryview) -> Callable[[Task], list[Any]]:
        """Return a function that makes a task's samples, with a PenstockError in the place of one that failed."""
        ...

    def repeated(self, sample: Any) -> Any:
        """Return a sample as it is put in the place of a bad one."""
        ...


@dataclass(frozen=True)
class CollateProgram:
    """Makes the samples of a batch and passes them to the user's collate_fn."""

    samples: SampleMaker
    collate_fn: Callable[[list[Any]], Any]
    on_error: Literal["raise", "skip", "replace"]

    def start(self, arena: memoryview, slabs: memoryview) -> TaskRunner:
        """Return a function that makes a task's batch, and returns it as an extra of the first good slot."""
        make = self.samples.start(arena)

        def run(task: Task) -> Extras:
            slots = task.rows[:, 0].tolist()
            samples = make(task)
            bad: Extras = [
                (slot, BAD_SAMPLE, s) for slot, s in zip(slots, samples, strict=True) if isinstance(s, PenstockError)
            ]
            good = [position for position, sample in enumerate(samples) if not isinstance(sample, PenstockError)]
            if not good or (bad and self.on_error == "raise"):
                return bad
            used = good if self.on_error == "skip" else replacement_slots(good, len(samples))
            repeated = take_padding(None, used)
            given = [samples[position] for position in used]
            if repeated is not None:
                given = [self.samples.repeated(s) if again else s for s, again in zip(given, repeated, strict=True)]
            batch = attempt(self.collate_fn, given, stage="collate")
            if isinstance(batch, PenstockError):
                # Each sample gets an error of its own, to which its location is added.
                return bad + [(slots[position], BAD_SAMPLE, copy(batch)) for position in good]
            return [*bad, (slots[good[0]], ROOT, batch)]

        return run


def attempt(call: Callable[..., Any], *arguments: Any, stage: str = "dataset") -> Any:
    """Call the user's code and return its result, or its error as a SampleError.

    The error's traceback becomes a note: the error itself may not be picklable.
    """
    try:
        return call(*arguments)
    except PenstockError as error:
        return error
    except (Exception, SystemExit) as error:
        sample_error = SampleError(f"{type(error).__name__}: {error}", stage=stage)
        sample_error.add_note(traceback.format_exc())
        return sample_error
