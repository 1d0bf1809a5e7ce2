"""Recordings shaped like those of timm's train.py: a slow early step, validations between epochs, and 16 workers.

The loads of the machine are computed second by second from what the simulated workers did, so that they differ between
training, the slow step and validation, as they did where such runs were recorded.
"""

from dataclasses import dataclass, replace

import msgspec
import numpy as np

from penstock.recording.format import (
    EndLine,
    EpochEndLine,
    EpochStartLine,
    Gpu,
    LoaderLine,
    ProcessLoad,
    StepLine,
    SystemLine,
)
from tests.support.simulated_recordings import TorchRun

SLOW_STEP = 2
"""Index of the step in which cuDNN tries its algorithms."""
EVALUATION_STEP_S = 0.2
EVALUATION_STEPS = 20
SETUP_S = 5.0
"""Seconds before the first epoch: imports, model, dataset."""


@dataclass
class TimmRun:
    """One run of timm's train.py on a machine with one GPU."""

    epochs: int = 3
    steps: int = 120
    """Training steps of each epoch."""
    step_s: float = 0.055
    slow_step_s: float = 8.0
    cpu_s: float = 1.6
    """Computing of a worker for a batch."""
    workers: int = 16
    cores: int = 16
    h2d_s: float = 0.01
    """Copying a batch from pageable memory; it is part of `step_s`, and so is the next."""
    sync_s: float = 0.004
    evaluation: bool = True
    settings: dict | None = None
    seed: int = 0

    def recording(self):
        lines, now_s = [], SETUP_S
        for epoch in range(self.epochs):
            epoch_lines, now_s = self._epoch(epoch, now_s)
            lines.append(epoch_lines)
        recording = lines[0]["base"]
        joined = {name: tuple(line for each in lines for line in each[name]) for name in lines[0] if name != "base"}
        run = msgspec.structs.replace(
            recording.run, machine=msgspec.structs.replace(recording.run.machine, gpus=(Gpu(name="H200"),))
        )
        loaders = {**recording.loaders, 1: LoaderLine(loader=1, type="torch", batches=EVALUATION_STEPS)}
        recording = replace(recording, run=run, loaders=loaders, **joined, end=EndLine(at_s=now_s + 1.0))
        return replace(recording, system=tuple(self._system(recording, now_s)))

    def _epoch(self, epoch, start_s):
        random = np.random.default_rng(self.seed + epoch)
        step_s = self.step_s * random.uniform(0.97, 1.03, self.steps)
        if epoch == 0:
            step_s[SLOW_STEP] = self.slow_step_s
        base = TorchRun(
            workers=self.workers,
            cores=self.cores,
            count=self.steps,
            step_s=step_s,
            cpu_s=self.cpu_s * random.uniform(0.9, 1.1, self.steps),
            step_cpu_s=0.004,
            settings={"pin_memory": False, "persistent_workers": True, **(self.settings or {})},
        ).recording()
        steps = [self._moved(step, epoch, start_s, phases=self._phases(step)) for step in base.steps]
        fetches = [self._moved(fetch, epoch, start_s) for fetch in base.fetches]
        end_s = steps[-1].at_s + steps[-1].wait_s + steps[-1].step_s
        epochs = [EpochStartLine(loader=0, epoch=epoch, at_s=start_s)]
        ends = [EpochEndLine(loader=0, epoch=epoch, at_s=end_s)]
        if self.evaluation:
            epochs.append(EpochStartLine(loader=1, epoch=epoch, at_s=end_s))
            for batch in range(EVALUATION_STEPS):
                steps.append(
                    StepLine(
                        loader=1,
                        epoch=epoch,
                        batch=batch,
                        at_s=end_s,
                        wait_s=0.01,
                        step_s=EVALUATION_STEP_S,
                        samples=16,
                    )
                )
                end_s += 0.01 + EVALUATION_STEP_S
            ends.append(EpochEndLine(loader=1, epoch=epoch, at_s=end_s))
        return {"base": base, "epochs": epochs, "epoch_ends": ends, "steps": steps, "fetches": fetches}, end_s

    def _moved(self, line, epoch, start_s, **changes):
        return msgspec.structs.replace(line, epoch=epoch, at_s=line.at_s + start_s, **changes)

    def _phases(self, step):
        """Return the phases of a step; in the slow one the first synchronising call waits for everything."""
        slow = step.step_s > 1.0
        return {
            "h2d": self.h2d_s,
            "forward": 0.01,
            "backward": self.step_s - 0.014 - self.h2d_s - self.sync_s,
            "optimizer": 0.002,
            "sync": step.step_s - 0.05 if slow else self.sync_s,
        }

    def _system(self, recording, end_s):
        """Yield a line per second with the cores that the workers and the loop used in it."""
        begins = np.array([fetch.at_s for fetch in recording.fetches])
        seconds = np.array([fetch.fetch_s for fetch in recording.fetches])
        cpu_s = np.array([fetch.cpu_s for fetch in recording.fetches])
        training = [step for step in recording.steps if step.loader == 0]
        for at_s in np.arange(1.0, end_s, 1.0):
            overlap = np.clip(np.minimum(begins + seconds, at_s) - np.maximum(begins, at_s - 1), 0, None)
            workers = float((cpu_s * overlap / seconds).sum())
            in_training = any(
                step.at_s < at_s and step.at_s + step.wait_s + step.step_s > at_s - 1 for step in training
            )
            if not in_training:
                workers = 6.0  # validation
            main = ProcessLoad(cpu=0.25, thread_cpu=0.22, queue=0.02)
            each = tuple(ProcessLoad(loader=0, worker=w, cpu=workers / self.workers) for w in range(self.workers))
            yield SystemLine(at_s=float(at_s), processes=(main, *each))


SHORT_RUN = TimmRun(epochs=1, steps=150, step_s=0.06, slow_step_s=11.0, cpu_s=1.35)
"""A ResNet-50 in one epoch, most of whose batches are those that were prefetched during its slow step."""
