"""A supply of numbers and a work that copies them: enough for an engine, which looks inside neither.

Worker processes import this module, so it must not import torch or pytest.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.core.contracts import NO_BLOCK, BatchRequest, EpochRequest
from penstock.engine.engine import EnginePlan

VALUE = 8  # bytes of a sample in the arena, and of a slot in the slab


class Numbers:
    """Sample i's bytes are the number 7 * i; `per_block` samples lie in each block of `block_size` bytes."""

    def __init__(self, samples=64, per_block=8, block_size=4096, blockless=False):
        self.samples, self.per_block, self.block_size = samples, per_block, block_size
        self.blockless = blockless
        self.filled = []
        self.gate = None
        self.error_at = {}

    @property
    def blocks(self):
        return -(-self.samples // self.per_block)

    def blocks_of(self, samples):
        return np.full(len(samples), NO_BLOCK) if self.blockless else samples // self.per_block

    def block_bytes(self, block):
        return self.block_size

    def read_block(self, block, into):
        if self.gate is not None:
            self.gate.wait()
        if block in self.error_at:
            raise self.error_at[block]
        self.filled.append(block)
        first = block * self.per_block
        numbers = 7 * np.arange(first, first + self.per_block, dtype=np.int64)
        into[: numbers.nbytes] = numbers.tobytes()
        return len(into)

    def task_rows(self, samples, slots, bases):
        return np.stack([slots, samples, bases + samples % self.per_block * VALUE], axis=1)

    def epoch(self, batches, first=0, number=0):
        """An epoch of these lists of samples."""
        batches = [np.asarray(samples, np.int64) for samples in batches]
        everything = np.concatenate([*batches, np.zeros(0, np.int64)])
        uses = np.bincount(everything // self.per_block, minlength=self.blocks).astype(np.int64)
        requests = (BatchRequest(number, samples, 0, number=first + at) for at, samples in enumerate(batches))
        return EpochRequest(requests, uses.item)


@dataclass(frozen=True)
class Copy:
    """Copies each sample's number from the arena to its slot; `trouble` says which samples misbehave, and how."""

    trouble: dict = field(default_factory=dict)
    folder: str = ""
    from_arena: bool = True

    def start(self, arena, slabs):
        if "start" in self.trouble:
            raise ValueError("this work cannot start")
        return lambda task: self.run(task, arena, slabs)

    def run(self, task, arena, slabs):
        extras = []
        for slot, sample, offset in task.rows.tolist():
            trouble = self.trouble.get(sample)
            if trouble is not None:
                TROUBLES[trouble](self, slot, sample, extras)
            value = int.from_bytes(arena[offset : offset + VALUE], sys.byteorder) if self.from_arena else 7 * sample
            at = task.slab_start + slot * VALUE
            slabs[at : at + VALUE] = value.to_bytes(VALUE, sys.byteorder)
        return extras

    def first_time(self, sample):
        """Whether no worker has been at this sample before."""
        try:
            os.close(os.open(Path(self.folder) / f"seen-{sample}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__("boom")


def _die(work, slot, sample, extras):
    os.kill(os.getpid(), signal.SIGKILL)


def _die_once(work, slot, sample, extras):
    if work.first_time(sample):
        _die(work, slot, sample, extras)


def stuck_in_here():
    time.sleep(3600)


def _stuck_once(work, slot, sample, extras):
    if work.first_time(sample):
        stuck_in_here()


def _stuck(work, slot, sample, extras):
    stuck_in_here()


def _fail(work, slot, sample, extras):
    raise Unpicklable(1, 2)


def _exit(work, slot, sample, extras):
    sys.exit("enough")


def _lambda(work, slot, sample, extras):
    extras.append((slot, "value", lambda: 1))


def _modules(work, slot, sample, extras):
    extras.append((slot, "modules", sorted(sys.modules)))


def _large(work, slot, sample, extras):
    extras.append((slot, "large", bytes(1 << 20)))


def _who(work, slot, sample, extras):
    extras.append((slot, "pid", os.getpid()))


def _half(work, slot, sample, extras):
    """Half an answer, and no more."""
    links = ((int(fd), f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    (pipe,) = [fd for fd, link in links if os.path.lexists(link) and os.readlink(link).startswith("socket:")]
    os.write(pipe, (100).to_bytes(8, "little") + b"half")
    stuck_in_here()


def _program(work, slot, sample, extras):
    extras.append((slot, "pid", subprocess.Popen(["sleep", "3600"], close_fds=False).pid))


def _die_behind_a_child(work, slot, sample, extras):
    """The first time; a child that it leaves has all that was open."""
    if work.first_time(sample):
        child = os.fork()
        if child == 0:
            stuck_in_here()
        (Path(work.folder) / "child").write_text(str(child))
        _die(work, slot, sample, extras)


THREADS_MAY_GO = threading.Event()


def _stuck_thread(work, slot, sample, extras):
    THREADS_MAY_GO.wait()


TROUBLES = {
    "die": _die,
    "die once": _die_once,
    "stuck": _stuck,
    "stuck once": _stuck_once,
    "stuck thread": _stuck_thread,
    "fail": _fail,
    "exit": _exit,
    "lambda": _lambda,
    "modules": _modules,
    "large": _large,
    "who": _who,
    "half": _half,
    "program": _program,
    "die behind a child": _die_behind_a_child,
}


def plan(executor="process", **changes):
    settings = {
        "executor": executor,
        "workers": 2,
        "readers": 2,
        "slabs": 3,
        "slab_bytes": 4096,
        "arena_bytes": 1 << 20,
        "deadline_s": 60.0,
    }
    return EnginePlan(**{**settings, **changes})


def take(engine, number):
    """A batch's values and extras, copied; its slab is given back."""
    batch = engine.wait_for(number)
    start = batch.slab * engine.plan.slab_bytes
    count = len(batch.request.samples)
    values = np.frombuffer(bytes(engine.slabs.view[start : start + count * VALUE]), np.int64).tolist()
    engine.conductor.release(batch.slab)
    return values, batch.extras


def take_all(engine, supply, batches, first=0):
    """Run an epoch; the values and extras of its batches."""
    engine.begin(supply.epoch(batches, first))
    return [take(engine, first + at) for at in range(len(batches))]


def open_files():
    """What our descriptors point at, with numbers of pipes and sockets left out."""
    found = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{fd}").split("[")[0]] += 1
        except FileNotFoundError:
            pass  # the listing's own
    return found
