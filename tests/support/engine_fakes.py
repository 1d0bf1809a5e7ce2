"""A block source of numbers, a worker program that copies them, and functions that run an engine with both.

Worker processes import this module, so it must not import torch or pytest.
"""

import os
import random
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

VALUE = 8
"""Bytes of a sample in the arena, and of a slot in the slab."""


class Numbers:
    """A source in which sample i is the number 7 * i, with `per_block` samples in each block of `block_size` bytes."""

    def __init__(self, samples=64, per_block=8, block_size=4096, blockless=False):
        self.samples, self.per_block, self.block_size = samples, per_block, block_size
        self.blockless = blockless
        self.blocks_read = []
        self.gate = None
        """An object whose `wait` every read calls first."""
        self.errors = {}
        """Errors that reading raises, by block."""

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
        if block in self.errors:
            raise self.errors[block]
        self.blocks_read.append(block)
        first = block * self.per_block
        numbers = 7 * np.arange(first, first + self.per_block, dtype=np.int64)
        into[: numbers.nbytes] = numbers.tobytes()
        return len(into)

    def task_rows(self, samples, slots, block_starts):
        return np.stack([slots, samples, block_starts + samples % self.per_block * VALUE], axis=1)

    def epoch(self, batches, first=0, number=0):
        """Return an epoch of these lists of samples, whose first batch has the number `first`."""
        batches = [np.asarray(samples, np.int64) for samples in batches]
        all_samples = np.concatenate([*batches, np.zeros(0, np.int64)])
        uses = np.bincount(all_samples // self.per_block, minlength=self.blocks).astype(np.int64)
        requests = (BatchRequest(number, samples, 0, number=first + at) for at, samples in enumerate(batches))
        return EpochRequest(requests, uses.item)


@dataclass(frozen=True)
class Copy:
    """A program that copies each sample's number from the arena to its slot, except for the samples in `trouble`."""

    trouble: dict = field(default_factory=dict)
    """Sample → name of a function in TROUBLES that runs before the sample is copied; "start": starting fails."""
    folder: str = ""
    """Folder for the files by which a trouble occurs only once."""
    from_arena: bool = True
    """False: compute the numbers, for a source without blocks."""

    def start(self, arena, slabs):
        if "start" in self.trouble:
            raise ValueError("this program cannot start")
        return lambda task: self.run(task, arena, slabs)

    def run(self, task, arena, slabs):
        extras = []
        for slot, sample, offset in task.rows.tolist():
            trouble = self.trouble.get(sample)
            if trouble is not None:
                TROUBLES[trouble](self, slot, sample, extras)
            value = int.from_bytes(arena[offset : offset + VALUE], sys.byteorder) if self.from_arena else 7 * sample
            start = task.slab_start + slot * VALUE
            slabs[start : start + VALUE] = value.to_bytes(VALUE, sys.byteorder)
        return extras

    def first_time(self, sample):
        """Return whether no worker has run this sample before."""
        try:
            os.close(os.open(Path(self.folder) / f"seen-{sample}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Unpicklable(Exception):
    """An exception that cannot be unpickled, because its constructor takes two arguments and stores another one."""

    def __init__(self, one, two):
        super().__init__("boom")


def _die(program, slot, sample, extras):
    os.kill(os.getpid(), signal.SIGKILL)


def _die_once(program, slot, sample, extras):
    if program.first_time(sample):
        _die(program, slot, sample, extras)


def stuck_in_here():
    time.sleep(3600)


def _stuck_once(program, slot, sample, extras):
    if program.first_time(sample):
        stuck_in_here()


def _stuck(program, slot, sample, extras):
    stuck_in_here()


def _fail(program, slot, sample, extras):
    raise Unpicklable(1, 2)


def _exit(program, slot, sample, extras):
    sys.exit("enough")


def _lambda(program, slot, sample, extras):
    extras.append((slot, "value", lambda: 1))


def _modules(program, slot, sample, extras):
    extras.append((slot, "modules", sorted(sys.modules)))


def _large(program, slot, sample, extras):
    extras.append((slot, "large", bytes(1 << 20)))


def _pid(program, slot, sample, extras):
    extras.append((slot, "pid", os.getpid()))


def _half_message(program, slot, sample, extras):
    """Write half of a message to the pipe and then stop."""
    links = ((int(fd), f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    (pipe,) = [fd for fd, link in links if os.path.lexists(link) and os.readlink(link).startswith("socket:")]
    os.write(pipe, (100).to_bytes(8, "little") + b"half")
    stuck_in_here()


def _start_program(program, slot, sample, extras):
    extras.append((slot, "pid", subprocess.Popen(["sleep", "3600"], close_fds=False).pid))


def _die_behind_a_child(program, slot, sample, extras):
    """Die the first time, and leave a child process that keeps all files open."""
    if program.first_time(sample):
        child = os.fork()
        if child == 0:
            stuck_in_here()
        (Path(program.folder) / "child").write_text(str(child))
        _die(program, slot, sample, extras)


THREADS_MAY_CONTINUE = threading.Event()
"""Ends the trouble "stuck thread"; a thread, unlike a process, cannot be killed."""


def _stuck_thread(program, slot, sample, extras):
    THREADS_MAY_CONTINUE.wait()


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
    "pid": _pid,
    "half message": _half_message,
    "start a program": _start_program,
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
        "timeout_s": 60.0,
    }
    return EnginePlan(**{**settings, **changes})


def take(engine, number):
    """Return a copy of a batch's values, and its extras, and release its slab."""
    batch = engine.wait_for(number)
    start = batch.slab * engine.plan.slab_bytes
    count = len(batch.request.samples)
    values = np.frombuffer(bytes(engine.slabs.view[start : start + count * VALUE]), np.int64).tolist()
    engine.scheduler.release(batch.slab)
    return values, batch.extras


def take_all(engine, source, batches, first=0):
    """Run an epoch, and return the values and extras of its batches."""
    engine.begin(source.epoch(batches, first))
    return [take(engine, first + index) for index in range(len(batches))]


def shuffled(samples, batch_size, seed=0):
    """Return the batches of a shuffled epoch."""
    order = list(range(samples))
    random.Random(seed).shuffle(order)
    return [order[first : first + batch_size] for first in range(0, samples, batch_size)]


def values(samples):
    return [7 * sample for sample in samples]


def check(taken, batches):
    """Check that every slot has the number of its own sample, and that there are no extras."""
    assert [found for found, _ in taken] == [values(samples) for samples in batches]
    assert [extras for _, extras in taken] == [[] for _ in batches]


def open_files():
    """Return what the descriptors of this process point to, without the numbers of pipes and sockets."""
    found = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{fd}").split("[")[0]] += 1
        except FileNotFoundError:
            pass  # the descriptor of the listing itself
    return found
