"""A callback that watches a Trainer of Hugging Face: `Trainer(callbacks=[TrainerWatch("run.jsonl")])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from penstock.watcher.callbacks.training import WatchedTraining


class TrainerWatch(WatchedTraining, TrainerCallback):
    """A callback that watches every `train`, evaluation included."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to watch: the loaders are made, and none has been iterated over."""
        self.begin(args.process_index)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the run.

        The Trainer does not call this when training fails: the run then ends with the process, or when the next
        training begins.
        """
        self.end()
