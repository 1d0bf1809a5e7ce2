"""One loader, run once from its construction to its last batch, and what that took."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

import msgspec

from penstock.bench.process_usage import MEMORY_KIND, MemoryKind, MemoryPeak, cpu_seconds
from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError

Batch = TypeVar("Batch")

TIMEOUT_S = 600.0
WARM_UP = 5
"""One batch in so many is warm-up, and at least the first."""
STDERR_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRun:
    """What one run of one contestant delivered and took."""

    contestant: str
    workers: int
    samples: int
    batches: int
    keys_digest: str
    """Of the keys as a multiset (see `digest`): equal for two runs that delivered the same samples equally often."""
    first_batch_s: float
    """From just before the loader is made to its first batch; imports are not counted."""
    seconds: float
    """From just before the loader is made to its last batch."""
    rate: float
    """Samples per second once running: those after the first fifth of the batches, over the time after it.

    What starts slowly is told by first_batch_s; and batches that others had in hand when the first one came, which
    would look like speed in a short run, are mostly gone by then.
    """
    peak_memory_bytes: int
    """Of the process and all its descendants together, looked at every 50 ms or less often where looking is dear."""
    memory_kind: MemoryKind
    """How memory shared between them is counted: "pss" once, "rss" once per process."""
    cpu_s_per_sample: float | None
    """User and system time of the process and all its descendants; None where the platform does not keep it."""


def measure(
    name: str,
    workers: int,
    make_batches: Callable[[], Iterable[Batch]],
    keys_of: Callable[[Batch], Sequence[str]],
    clock: Clock = SYSTEM_CLOCK,
) -> LoaderRun:
    """Run the loader that `make_batches` makes to its end, in this process; import what it needs before calling.

    The loader is closed (its `close`, if it has one, then garbage) before CPU-seconds are read, because a process's
    children are counted when they have ended. Keys are hashed when the clock has stopped.
    """
    cpu_before = cpu_seconds()
    keys: list[Sequence[str]] = []
    times: list[float] = []
    with MemoryPeak() as memory:
        began = clock.now()
        loader = make_batches()
        for batch in loader:
            times.append(clock.now())
            keys.append(keys_of(batch))
            del batch  # no contestant waits for the next batch while we hold this one
    _close(loader)
    del loader
    gc.collect()
    cpu_after = cpu_seconds()
    samples = sum(map(len, keys))
    if len(keys) < 2:
        raise PenstockError(
            f"{name} delivered {len(keys)} batches of {samples} samples: a rate needs two",
            stage="bench",
            advice="Take smaller batches or more shards",
        )
    return LoaderRun(
        contestant=name,
        workers=workers,
        samples=samples,
        batches=len(keys),
        keys_digest=digest(key for batch_keys in keys for key in batch_keys),
        first_batch_s=times[0] - began,
        seconds=times[-1] - began,
        rate=_rate(times, [len(batch_keys) for batch_keys in keys]),
        peak_memory_bytes=memory.peak_bytes,
        memory_kind=MEMORY_KIND,
        cpu_s_per_sample=_cpu_per_sample(cpu_before, cpu_after, memory.own_cpu_s, samples),
    )


def _rate(times: Sequence[float], counts: Sequence[int]) -> float:
    warm = max(1, len(times) // WARM_UP)
    return sum(counts[warm:]) / max(times[-1] - times[warm - 1], 1e-9)


def digest(keys: Iterable[str]) -> str:
    """The sum of the keys' 64-bit hashes: the same in any order, and another one if a key is missing or comes twice."""
    total = sum(
        int.from_bytes(hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=8).digest()) for key in keys
    )
    return f"{total % 2**64:016x}"


def print_trial(trial: LoaderRun) -> None:
    """How a child answers `in_child`: one line, the last on its stdout."""
    print(msgspec.json.encode(trial).decode(), flush=True)


def in_child(argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> LoaderRun:
    """Run `python -m argv…` in a fresh process, which ends with `print_trial`; nothing it started outlives the call.

    Output goes to files, not pipes: a descendant that keeps its end of a pipe open would hold us up.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            [sys.executable, "-m", *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=sys.platform != "win32",
        )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise _failure(argv, f"did not end within {timeout_s:.0f} s", err) from None
        finally:
            _end(child)
        if code != 0:
            raise _failure(argv, f"ended with exit code {code}", err)
        lines = _read(out).split(b"\n")
        try:
            return msgspec.json.decode(next(line for line in reversed(lines) if line.strip()), type=LoaderRun)
        except (StopIteration, msgspec.DecodeError):
            raise _failure(argv, "printed no result", err) from None


def _close(loader: object) -> None:
    close = getattr(loader, "close", None)
    if callable(close):
        close()


def _cpu_per_sample(before: float | None, after: float | None, ours: float, samples: int) -> float | None:
    if before is None or after is None:
        return None
    return max(0.0, after - before - ours) / samples


def _end(child: subprocess.Popen[bytes]) -> None:
    """The child and its process group are gone, however we come here: done, failed, timed out, interrupted."""
    if sys.platform == "win32":
        child.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _failure(argv: Sequence[str], what: str, err: IO[bytes]) -> PenstockError:
    tail = _read(err)[-STDERR_TAIL_BYTES:].decode(errors="replace").strip()
    said = f"; it said: {' | '.join(tail.splitlines())}" if tail else ", and said nothing"
    return PenstockError(f"python -m {' '.join(argv)} {what}{said}", stage="bench")


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
