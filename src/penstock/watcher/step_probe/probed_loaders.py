"""A loader of the script, as the probe sees it: does it feed the training, and which batch is kept of it?"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from penstock.core.clock import Clock
from penstock.watcher.dataloader import main_process as torchloader
from penstock.watcher.loader_views import count_samples
from penstock.watcher.step_probe.repeated_batch import RepeatedBatch

TRAINING_STEPS = 5
"""Times that gradients were computed between two batches of a pass: then the loader feeds the training."""
QUIET_S = 0.5
"""A penstock.Loader that has made nothing for so long has nothing to make."""
PENSTOCK_PREFETCH = 2
"""Batches per worker that a penstock.Loader is taken to have ready: it goes by memory, not by their number."""


class ProbedLoader(ABC):
    """Knows by what is done between its batches whether they are trained on: an evaluation computes no gradients."""

    def __init__(self, workers: int, prefetch: int) -> None:
        self.workers = workers
        self.prefetch = prefetch
        """Batches per worker that are made before they are asked for."""
        self.samples: int | None = None
        """In its last batch."""
        self.first_of_epoch = True
        """Whether that was the first of its pass, or there was none yet."""
        self._batches_in_epoch = 0
        self._training_steps = 0
        self._gradients = 0
        self._kept: RepeatedBatch | None = None

    @abstractmethod
    def busy(self) -> bool:
        """Whether its workers are still making batches."""

    @property
    def trained_on(self) -> bool:
        """Whether it is trained on."""
        return self._training_steps >= TRAINING_STEPS

    @property
    def has_kept_batch(self) -> bool:
        """Whether it has a batch to give again."""
        return self._kept is not None

    def epoch_started(self, iterator: Any) -> None:
        """A pass begins."""
        self._batches_in_epoch = 0

    def batch_requested(self, gradients: int) -> None:
        """The script wants a batch; so many times gradients have been computed since it began."""
        self._training_steps += self._batches_in_epoch > 0 and gradients > self._gradients
        self._gradients = gradients

    def next_batch(self, draw: Callable[[], Any]) -> Any:
        """A batch of its own."""
        batch = draw()
        self.samples = count_samples(batch)
        self._count_batch()
        return batch

    def repeated_batch(self, draw: Callable[[], Any]) -> Any:
        """The batch that is kept; if there is none yet, the next one is from now on."""
        if self._kept is None:
            self._kept = RepeatedBatch(self.next_batch(draw))
        else:
            self._count_batch()
        return self._kept.batch()

    def _count_batch(self) -> None:
        self.first_of_epoch = self._batches_in_epoch == 0
        self._batches_in_epoch += 1


class ProbedTorchLoader(ProbedLoader):
    """Of a torch DataLoader."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader.num_workers, loader.prefetch_factor or 0)
        self._iterator: weakref.ref[Any] | None = None

    def epoch_started(self, iterator: Any) -> None:
        """A pass begins."""
        super().epoch_started(iterator)
        self._iterator = weakref.ref(iterator)

    def busy(self) -> bool:
        """While not all that workers were asked for has arrived."""
        look = torchloader.queue_state(None if self._iterator is None else self._iterator())
        return look.ready is not None and look.outstanding is not None and look.ready < look.outstanding


class ProbedPenstockLoader(ProbedLoader):
    """Of a penstock.Loader."""

    def __init__(self, loader: Any, clock: Clock) -> None:
        super().__init__(loader.num_workers, PENSTOCK_PREFETCH)
        self._loader = weakref.ref(loader)
        self._clock = clock
        self._made = 0
        self._made_s = clock.now()

    def busy(self) -> bool:
        """While samples were made a short time ago."""
        loader = self._loader()
        made = self._made if loader is None else loader.stats().engine.samples
        if made != self._made:
            self._made, self._made_s = made, self._clock.now()
        return self._clock.now() - self._made_s < QUIET_S
