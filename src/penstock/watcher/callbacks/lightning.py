"""A callback that watches a Trainer of Lightning: `Trainer(callbacks=[LightningWatch("run.jsonl")])`."""

from __future__ import annotations

from typing import Any

from penstock.watcher.callbacks.training import WatchedTraining

try:
    from lightning.pytorch import Callback
except ImportError:  # Lightning is also published under this name
    from pytorch_lightning import Callback  # type: ignore[assignment]


class LightningWatch(WatchedTraining, Callback):
    """A callback that watches every `fit`, validation included."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to watch; on_train_start would be too late, because Lightning makes the first iterator before it."""
        if stage == "fit":
            self.begin(trainer.global_rank)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the run after the fit."""
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run of a fit that raised; Lightning does not call teardown then."""
        self.end("interrupted" if isinstance(exception, KeyboardInterrupt) else "raised")
