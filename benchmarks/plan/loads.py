"""The loads: datasets of the fault benchmark and a few more, each with a batch size, a step and settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.faults import FAULTS, Case, Fault, Severity, Step
from torch.utils.data import DataLoader

from benchmarks.plan.extra_trainings import large_arrays, one_head, tiny_samples
from penstock.tuner.result import WorkerSettings

ENDLESS = 20_000
"""Steps of eight samples: more than any run takes."""
COLD = 480
"""Steps of eight samples, if no data may be read twice; all of it is written to a file first."""
QUICK = Step(cpu_s=0.0002, device_s=0.0)


@dataclass(frozen=True, kw_only=True)
class Load:
    """One dataset with a step. A run is recorded with one setting, and the rates of other settings are predicted."""

    name: str
    fault: Fault
    """Makes the dataset, and the disk or the store that it is read from."""
    severity: Severity = "severe"
    batch_size: int = 8
    step: Step = field(default_factory=Step)
    steps: int = ENDLESS
    """Steps that the dataset is made for; runs end earlier."""
    recorded: WorkerSettings
    """The setting of the recording."""
    predicted: tuple[WorkerSettings, ...]
    """The settings whose rates are predicted from the recording and measured."""

    @contextmanager
    def open(self, folder: Path, setting: WorkerSettings) -> Iterator[DataLoader[object]]:
        """Yield a DataLoader with these settings, while the disk or the store that the fault sets up exists."""
        case = Case(folder=folder, severity=self.severity, steps=self.steps)
        with self.fault.build(case) as training:
            assert isinstance(training.loader, DataLoader)
            yield DataLoader(training.loader.dataset, batch_size=self.batch_size, **setting.kwargs())

    def missing(self, folder: Path) -> str | None:
        """Return why this machine cannot run the load; None if it can."""
        return self.fault.missing(folder)


def _settings(*pairs: tuple[int, int]) -> tuple[WorkerSettings, ...]:
    return tuple(WorkerSettings(workers, prefetch) if workers else WorkerSettings() for workers, prefetch in pairs)


_ALL = (
    Load(
        name="decode, 640 pixels",
        fault=FAULTS["large_images"],
        severity="mild",
        batch_size=16,
        recorded=WorkerSettings(1),
        predicted=_settings((0, 2), (2, 2), (4, 2), (8, 4)),
    ),
    Load(
        name="decode, 960 pixels",
        fault=FAULTS["large_images"],
        recorded=WorkerSettings(4),
        predicted=_settings((0, 2), (1, 2), (2, 2), (8, 4)),
    ),
    Load(
        name="a wait per sample",
        fault=FAULTS["slow_samples"],
        severity="mild",
        recorded=WorkerSettings(2),
        predicted=_settings((0, 2), (1, 2), (4, 2), (8, 4)),
    ),
    Load(
        name="a store that answers late",
        fault=FAULTS["slow_store"],
        batch_size=4,
        recorded=WorkerSettings(4),
        predicted=_settings((0, 2), (2, 2), (8, 2), (16, 8)),
    ),
    Load(
        name="some answers very late",
        fault=FAULTS["late_answers"],
        recorded=WorkerSettings(4),
        predicted=_settings((1, 2), (2, 2), (4, 8), (8, 2)),
    ),
    Load(
        name="a disk of 30 MB/s",
        fault=FAULTS["slow_disk"],
        steps=COLD,
        recorded=WorkerSettings(2),
        predicted=_settings((0, 2), (1, 2), (4, 2), (8, 4)),
    ),
    Load(
        name="a disk of 900 reads/s",
        fault=FAULTS["few_reads"],
        steps=COLD,
        batch_size=4,
        recorded=WorkerSettings(4),
        predicted=_settings((1, 2), (2, 2), (8, 2)),
    ),
    Load(
        name="a disk with one head",
        fault=one_head,
        recorded=WorkerSettings(4),
        predicted=_settings((0, 2), (1, 2), (2, 2), (8, 4)),
    ),
    Load(
        name="files slow to open",
        fault=FAULTS["tiny_files"],
        severity="mild",
        recorded=WorkerSettings(2),
        predicted=_settings((0, 2), (1, 2), (4, 2)),
    ),
    Load(
        name="heavy samples among light",
        fault=FAULTS["stragglers"],
        severity="mild",
        recorded=WorkerSettings(2),
        predicted=_settings((0, 2), (1, 2), (2, 8), (4, 2)),
    ),
    Load(
        name="tiny samples",
        fault=tiny_samples,
        batch_size=64,
        step=QUICK,
        steps=200_000,
        recorded=WorkerSettings(1),
        predicted=_settings((0, 2), (2, 2), (4, 2)),
    ),
    Load(
        name="large arrays",
        fault=large_arrays,
        recorded=WorkerSettings(2),
        predicted=_settings((0, 2), (1, 2), (4, 2)),
    ),
    Load(
        name="a long step",
        fault=FAULTS["compute_bound"],
        step=Step(cpu_s=0.018, device_s=0.0),
        recorded=WorkerSettings(2),
        predicted=_settings((0, 2), (1, 2), (4, 2), (8, 4)),
    ),
)

LOADS: dict[str, Load] = {load.name: load for load in _ALL}
GRID_LOADS = (
    "decode, 960 pixels",
    "a wait per sample",
    "a disk with one head",
    "heavy samples among light",
    "tiny samples",
    "a long step",
)
"""The loads for which a grid of settings is measured."""
QUICK_LOADS = ("a wait per sample", "tiny samples")
"""The loads of a quick run: they need neither root nor a special filesystem."""
