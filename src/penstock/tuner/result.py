"""Settings of a DataLoader's workers, and the results of a tuning: settings with the measurements behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.format import format_count
from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.errors import SettingError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of a DataLoader that a tuning changes."""

    workers: int = 0
    """Worker processes; 0: the training loop makes the batches itself."""
    prefetch: int = TORCH_PREFETCH_FACTOR
    """Prefetched batches per worker; meaningless without workers. More helps only against uneven batches."""
    in_order: bool = True

    def kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments for torch's DataLoader."""
        kwargs: dict[str, Any] = {"num_workers": self.workers}
        if self.workers:
            kwargs["prefetch_factor"] = self.prefetch
            if not self.in_order:
                kwargs["in_order"] = False
        return kwargs

    def cost(self) -> tuple[int, bool, int]:
        """Return a key to sort by what the settings cost: processes first, then the order of batches, then memory."""
        return self.workers, not self.in_order, self.prefetch

    def __str__(self) -> str:
        if not self.workers:
            return "no workers"
        words = [format_count(self.workers, "worker")]
        words += [f"prefetch {self.prefetch}"] if self.prefetch != TORCH_PREFETCH_FACTOR else []
        words += [] if self.in_order else ["out of order"]
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSetting:
    """One combination of settings and its rate."""

    setting: WorkerSettings
    how: Literal["measured", "computed", "failed"]
    """Computed: from the cost of one worker, where a run would have loaded from the user's own dataset."""
    samples_s: float | None = None
    """The median of its runs."""
    runs: int = 0
    first_s: float | None = None
    """Seconds until the first batch, most of which is the start of the workers."""
    predicted_samples_s: float | None = None
    """The model's prediction before it was measured."""
    note: str = ""
    """Whether it is torch's default or the given one, or why it failed."""


@dataclass(frozen=True, kw_only=True)
class TuningFindings:
    """The result of a tuning, without the dataset, so that it can be stored."""

    kwargs: Mapping[str, Any]
    """Keyword arguments for torch's DataLoader."""
    samples_s: float
    """Samples per second with them; items for a dataset that makes its own batches (batch_size=None)."""
    default_samples_s: float | None
    """Samples per second with torch's defaults."""
    measured: tuple[MeasuredSetting, ...]
    """Sorted by cost, the fewest workers first."""
    reasons: tuple[str, ...]
    seconds: float
    """Duration of the tuning."""
    complete: bool = True
    """False if something ended it early, or before anything was run; the reasons say what."""
    swapped_samples_s: float | None = None
    """Samples per second of penstock.DataLoader with the same settings; None if it was not run."""


@dataclass(frozen=True, kw_only=True)
class Tuned(TuningFindings):
    """The result of `penstock.tune`: keyword arguments, or a loader that has them."""

    remembered: bool = False
    """Whether it was measured by an earlier run on this machine, or by another rank of it."""
    make: Callable[[Mapping[str, Any]], DataLoader[Any]] | None = field(default=None, repr=False, compare=False)
    """Builds a loader like the given one with these keyword arguments."""

    def loader(self, **changes: Any) -> DataLoader[Any]:
        """Return a DataLoader like the tuned one, or over the tuned dataset; `changes` override `kwargs`."""
        if self.make is None:
            raise SettingError("these findings were read from a file: there is no dataset to make a loader of")
        return self.make({**self.kwargs, **changes})

    def findings(self) -> TuningFindings:
        """Return the result without the dataset, as it can be stored."""
        return TuningFindings(**{each.name: getattr(self, each.name) for each in fields(TuningFindings)})
