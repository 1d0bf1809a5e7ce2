"""Metadata of any map-style dataset: every sample is made once, by as many processes as there are cores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from penstock.core.cores import usable_cores
from penstock.data.decode.dataset_program import DatasetSamples
from penstock.data.decode.rng import restore_global_rngs
from penstock.errors import PenstockError

BATCH = 64
"""Samples that a process is given at a time."""

SampleMetadata = Callable[[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class _MetadataRows:
    """A dataset of metadata, over the user's dataset: what is sent to us is small, whatever the samples are."""

    samples: DatasetSamples
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Any:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: Sequence[int]) -> list[Any]:
        """Rows, and in place of each that could not be had the error that says why."""
        return list(self.samples.fetch([self.numbers[place] for place in places], epoch=0))


def sample_rows(
    dataset: Any, function: SampleMetadata, workers: int | None = None, numbers: Sequence[int] | None = None
) -> list[Any]:
    """What the function makes of every sample, or of those with these numbers; a bar shows how far it is.

    Run as torch's DataLoader runs a dataset: with 0 workers in this very process.
    """
    from torch.utils.data import DataLoader

    numbers = range(len(dataset)) if numbers is None else numbers
    cores = usable_cores()
    count = workers if workers is not None else cores if cores > 1 and len(numbers) > BATCH else 0
    rows_of = _MetadataRows(DatasetSamples(dataset, 0, partial(_told, function), in_processes=count > 0), numbers)
    loader: DataLoader[Any] = DataLoader(
        rows_of,  # type: ignore[arg-type]
        batch_size=BATCH,
        num_workers=count,
        collate_fn=list,
    )
    rows: list[Any] = []
    # put_back: the loader throws the dice of the training, and so may the dataset
    with restore_global_rngs(), Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("metadata", total=len(numbers))
        for some in loader:
            rows += [_checked(row, dataset, numbers[len(rows) + place]) for place, row in enumerate(some)]
            bar.update(task, completed=len(rows))
    return rows


def place(dataset: Any, sample: int) -> dict[str, Any]:
    """Which sample of what, as errors say it."""
    return {"shard": type(dataset).__name__, "member": str(sample)}


def _told(function: SampleMetadata, sample: Any, _rng: np.random.Generator) -> Mapping[str, Any]:
    return function(sample)


def _checked(row: Any, dataset: Any, sample: int) -> Any:
    if isinstance(row, PenstockError):
        raise row.at(**place(dataset, sample))
    return row
