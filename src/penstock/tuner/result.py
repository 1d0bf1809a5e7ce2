"""What tuning found: settings for a DataLoader, and the measurements behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.format import format_count
from penstock.errors import SettingError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

PREFETCH = 2
"""torch's own: deeper helps only against uneven batches."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a DataLoader makes its batches."""

    workers: int = 0
    """0: the training loop makes them itself."""
    prefetch: int = PREFETCH
    """Batches ahead per worker; means nothing without workers."""
    in_order: bool = True

    def kwargs(self) -> dict[str, Any]:
        """As torch's DataLoader takes them."""
        found: dict[str, Any] = {"num_workers": self.workers}
        if self.workers:
            found["prefetch_factor"] = self.prefetch
            if not self.in_order:
                found["in_order"] = False
        return found

    def cost(self) -> tuple[int, bool, int]:
        """What is given up for it, to sort by: processes first, then the order, then memory."""
        return self.workers, not self.in_order, self.prefetch

    def __str__(self) -> str:
        if not self.workers:
            return "no workers"
        words = [format_count(self.workers, "worker")]
        words += [f"prefetch {self.prefetch}"] if self.prefetch != PREFETCH else []
        words += [] if self.in_order else ["out of order"]
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSetting:
    """One setting and how fast it was."""

    setting: Setting
    how: Literal["measured", "computed", "failed"]
    """Computed: from what one worker took per batch, where running it would have touched the dataset itself."""
    samples_s: float | None = None
    """The median of its runs."""
    runs: int = 0
    first_s: float | None = None
    """Until the first batch: starting the workers is most of it."""
    predicted_samples_s: float | None = None
    """By the model, before it was measured."""
    note: str = ""
    """Whose setting it is, or why it failed."""


@dataclass(frozen=True, kw_only=True)
class TuningFindings:
    """All of it that can be written down."""

    kwargs: Mapping[str, Any]
    """For torch's DataLoader."""
    samples_s: float
    """With them. Of a dataset that makes its own batches (batch_size=None), items."""
    default_samples_s: float | None
    """With torch's defaults."""
    measured: tuple[MeasuredSetting, ...]
    """Fewest workers first."""
    reasons: tuple[str, ...]
    seconds: float
    """That tuning took."""
    complete: bool = True
    """False where something ended it before its time, or before anything was run: the reasons say what."""


@dataclass(frozen=True, kw_only=True)
class Tuned(TuningFindings):
    """`penstock.tune(...)`: keyword arguments, or a loader that has them."""

    remembered: bool = False
    """Measured by an earlier run on this machine, or by another rank of this one."""
    make: Callable[[Mapping[str, Any]], DataLoader[Any]] | None = field(default=None, repr=False, compare=False)
    """Builds a loader like the given one, but with these keyword arguments."""

    def loader(self, **changes: Any) -> DataLoader[Any]:
        """A DataLoader like the one that was tuned, or over the dataset that was; `changes` go over `kwargs`."""
        if self.make is None:
            raise SettingError("these findings were read from a file: there is no dataset to make a loader of")
        return self.make({**self.kwargs, **changes})

    def findings(self) -> TuningFindings:
        """Without the dataset: what can be written down."""
        return TuningFindings(**{each.name: getattr(self, each.name) for each in fields(TuningFindings)})
