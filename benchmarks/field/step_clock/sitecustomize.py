"""Times the optimizer steps of an unchanged script; Python imports this at its start, as the folder is on PYTHONPATH.

FIELD_STEPS names the file that the times are written to (float64 seconds). After FIELD_SECONDS of training, counted
from the first step, and enough steps the script is ended as by Ctrl-C. With FIELD_CACHED every DataLoader that is
iterated for training returns its first batch over and over, so that data costs nothing. FIELD_LOADER holds settings, as
JSON, that replace those of every DataLoader. Nothing here is a part of Penstock: it is its yardstick.
"""

import array
import functools
import importlib.abc
import importlib.util
import inspect
import json
import os
import sys
import time

STEPS_PER_WRITE = 8
ENOUGH_STEPS = 32
UNKNOWN_LENGTH = 100_000
"""Batches of an epoch if the loader has no length; the time limit ends it."""


class Clock:
    """Counts the steps of the first optimizer that steps."""

    def __init__(self):
        self.times, self.optimizer = array.array("d"), None
        self.file, self.limit_s = os.environ["FIELD_STEPS"], float(os.environ.get("FIELD_SECONDS", "1e9"))

    def __call__(self, optimizer, args, kwargs):
        if self.optimizer is None:
            self.optimizer = id(optimizer)
        if id(optimizer) != self.optimizer:
            return
        now = time.perf_counter()
        self.times.append(now)
        if len(self.times) % STEPS_PER_WRITE == 0:
            with open(self.file + ".part", "wb") as file:
                self.times.tofile(file)
            os.replace(self.file + ".part", self.file)
            if now - self.times[0] > self.limit_s and len(self.times) >= ENOUGH_STEPS:
                self.limit_s = 1e9
                raise KeyboardInterrupt  # not the signal, which is ignored in the background of a shell


def count_steps(module):
    module.register_optimizer_step_post_hook(Clock())


def repeat_first_batches(module):
    import torch

    make_iterator = module.DataLoader.__iter__

    def repeated(loader):
        batches = make_iterator(loader)
        if not torch.is_grad_enabled():  # an evaluation
            return batches
        try:
            length = len(loader)
        except TypeError:
            length = UNKNOWN_LENGTH
        first = next(batches)
        del batches
        return (first for _ in range(length))

    module.DataLoader.__iter__ = repeated


def replace_settings(module):
    init = module.DataLoader.__init__
    signature = inspect.signature(init)
    settings = json.loads(os.environ["FIELD_LOADER"])

    def replaced(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        given.update({name: value for name, value in settings.items() if name in signature.parameters})
        if not given.get("num_workers"):
            for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
                given.pop(name, None)
        init(**given)

    module.DataLoader.__init__ = functools.wraps(init)(replaced)


class Finder(importlib.abc.MetaPathFinder):
    """Calls a function on a module right after its import."""

    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_then(module):
            run(module)
            self.then(module)

        spec.loader.exec_module = run_and_then
        return spec


if os.environ.get("FIELD_STEPS"):
    sys.meta_path.insert(0, Finder("torch.optim.optimizer", count_steps))
    if os.environ.get("FIELD_LOADER"):
        sys.meta_path.insert(0, Finder("torch.utils.data.dataloader", replace_settings))
    elif os.environ.get("FIELD_CACHED"):
        sys.meta_path.insert(0, Finder("torch.utils.data.dataloader", repeat_first_batches))
