"""For Lightning: `Trainer(callbacks=[Watch("run.jsonl")])`."""

from __future__ import annotations

from typing import Any

from penstock.watcher.callbacks.training import WatchedTraining

try:
    from lightning.pytorch import Callback
except ImportError:  # its other name
    from pytorch_lightning import Callback  # type: ignore[assignment]


class Watch(WatchedTraining, Callback):
    """Watches every `fit`, validation included, from before the first loader is asked for an iterator."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning makes the first iterator before it says that training starts, so this is the place."""
        if stage == "fit":
            self.begin(trainer.global_rank)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The fit is over."""
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """It ended otherwise; there will be no teardown."""
        self.end("interrupted" if isinstance(exception, KeyboardInterrupt) else "raised")
