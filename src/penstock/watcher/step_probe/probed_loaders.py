"""The loaders of a probed script: which of them the training uses, and the batch that each delivers repeatedly."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from penstock.core.clock import Clock
from penstock.watcher.dataloader.main_process import queue_state
from penstock.watcher.loader_views import count_samples
from penstock.watcher.step_probe.repeated_batch import RepeatedBatch

TRAINING_STEPS = 5
"""Batches of one loader with gradients computed between them, after which the loader counts as used for training."""
QUIET_S = 0.5
"""Seconds without a new sample after which the workers of a penstock.Loader count as idle."""
PENSTOCK_PREFETCH = 2
"""Batches per worker that a penstock.Loader is assumed to prefetch; in fact its memory limits their number."""


class ProbedLoader(ABC):
    """One loader of the script.

    It counts as used for training if gradients are computed between its batches; an evaluation computes none.
    """

    def __init__(self, workers: int, prefetch: int) -> None:
        self.workers = workers
        self.prefetch = prefetch
        """Batches per worker that are made before they are requested."""
        self.samples: int | None = None
        """Samples of the last batch; None if that is not known."""
        self.first_of_epoch = True
        """Whether the last batch was the first of its epoch; also True before any batch."""
        self._batches_in_epoch = 0
        self._training_steps = 0
        self._gradients = 0
        """The script's count of gradient computations when a batch was last requested."""
        self._repeated: RepeatedBatch | None = None

    @abstractmethod
    def busy(self) -> bool:
        """Return whether its workers are making batches."""

    @property
    def trained_on(self) -> bool:
        """Whether the training uses its batches."""
        return self._training_steps >= TRAINING_STEPS

    @property
    def has_repeated_batch(self) -> bool:
        """Whether it holds a batch to deliver repeatedly."""
        return self._repeated is not None

    def epoch_started(self, iterator: Any) -> None:
        """Note that the script has made an iterator."""
        self._batches_in_epoch = 0

    def batch_requested(self, gradients: int) -> None:
        """Note that the script requests a batch; `gradients` counts its gradient computations so far."""
        self._training_steps += self._batches_in_epoch > 0 and gradients > self._gradients
        self._gradients = gradients

    def next_batch(self, draw: Callable[[], Any]) -> Any:
        """Return the next batch of the loader itself."""
        batch = draw()
        self.samples = count_samples(batch)
        self._count_batch()
        return batch

    def repeated_batch(self, draw: Callable[[], Any]) -> Any:
        """Return the batch that is repeated; the first call draws it."""
        if self._repeated is None:
            self._repeated = RepeatedBatch(self.next_batch(draw))
        else:
            self._count_batch()
        return self._repeated.batch()

    def _count_batch(self) -> None:
        self.first_of_epoch = self._batches_in_epoch == 0
        self._batches_in_epoch += 1


class ProbedTorchLoader(ProbedLoader):
    """A torch DataLoader of the script."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader.num_workers, loader.prefetch_factor or 0)
        self._iterator: weakref.ref[Any] | None = None

    def epoch_started(self, iterator: Any) -> None:
        """Note that the script has made an iterator."""
        super().epoch_started(iterator)
        self._iterator = weakref.ref(iterator)

    def busy(self) -> bool:
        """Return whether some of the tasks that workers were given have not arrived as batches."""
        state = queue_state(None if self._iterator is None else self._iterator())
        return state.ready is not None and state.outstanding is not None and state.ready < state.outstanding


class ProbedPenstockLoader(ProbedLoader):
    """A penstock.Loader of the script."""

    def __init__(self, loader: Any, clock: Clock) -> None:
        super().__init__(loader.num_workers, PENSTOCK_PREFETCH)
        self._loader = weakref.ref(loader)
        self._clock = clock
        self._samples_made = 0
        self._changed_s = clock.now()
        """When `_samples_made` last changed."""

    def busy(self) -> bool:
        """Return whether a sample was made within the last QUIET_S seconds."""
        loader = self._loader()
        made = self._samples_made if loader is None else loader.stats().engine.samples
        if made != self._samples_made:
            self._samples_made, self._changed_s = made, self._clock.now()
        return self._clock.now() - self._changed_s < QUIET_S
