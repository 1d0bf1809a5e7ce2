"""For the Trainer of Hugging Face's transformers: `Trainer(callbacks=[Watch("run.jsonl")])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from penstock.watcher.callbacks.training import WatchedTraining


class Watch(WatchedTraining, TrainerCallback):
    """Watches every `train`, evaluation included."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The loaders are made but not asked yet."""
        self.begin(args.process_index)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Not called when training fails: then the run ends with the process, or with the next training."""
        self.end()
