"""Measures one run of a loader, from its construction to its last batch, in this process or in a fresh one."""

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
WARM_UP_PART = 5
"""The first fifth of the batches, and at least the first batch, is warm-up."""
STDERR_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRun:
    """The samples that one run of a loader delivered, and the time, memory and CPU that it took."""

    loader: str
    workers: int
    samples: int
    batches: int
    keys_digest: str
    """The digest of the keys (see `digest`): equal for two runs that delivered the same samples equally often."""
    first_batch_s: float
    """Seconds from just before the loader is made to its first batch; imports are not included."""
    seconds: float
    """Seconds from just before the loader is made to its last batch."""
    rate: float
    """Samples per second after the first fifth of the batches.

    A slow start shows in `first_batch_s` instead. Batches that the workers had finished when the first one arrived
    would appear as speed in a short run; most of them are delivered by then.
    """
    peak_memory_bytes: int
    """Peak of the process and all its descendants together, sampled every 50 ms, or less often if sampling is slow."""
    memory_kind: MemoryKind
    """How memory shared between processes is counted: "pss" counts it once, "rss" once per process."""
    cpu_s_per_sample: float | None
    """User and system time of the process and all its descendants; None where the platform does not keep it."""


def measure(
    name: str,
    workers: int,
    make_batches: Callable[[], Iterable[Batch]],
    keys_of: Callable[[Batch], Sequence[str]],
    clock: Clock = SYSTEM_CLOCK,
) -> LoaderRun:
    """Run the loader that `make_batches` returns to its end in this process; its imports must be done before.

    The loader is closed (its `close`, if it has one, then garbage collection) before the CPU seconds are read, because
    the CPU time of a child process is counted when it has ended. Keys are hashed after the timing.
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
            del batch  # no loader has to wait because this function still holds its batch
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
        loader=name,
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
    warm = max(1, len(times) // WARM_UP_PART)
    return sum(counts[warm:]) / max(times[-1] - times[warm - 1], 1e-9)


def digest(keys: Iterable[str]) -> str:
    """Return the sum of the keys' 64-bit hashes: independent of the order, but not of missing or repeated keys."""
    total = sum(
        int.from_bytes(hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=8).digest()) for key in keys
    )
    return f"{total % 2**64:016x}"


def print_run(run: LoaderRun) -> None:
    """Print the result for `run_in_child`: one line, the last one on stdout."""
    print(msgspec.json.encode(run).decode(), flush=True)


def run_in_child(argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> LoaderRun:
    """Run `python -m argv…` in a fresh process that ends with `print_run`; no process that it started survives.

    Its output goes to files, not pipes: a descendant that keeps its end of a pipe open would block this call.
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
            _kill_group(child)
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


def _cpu_per_sample(before: float | None, after: float | None, sampling_s: float, samples: int) -> float | None:
    if before is None or after is None:
        return None
    return max(0.0, after - before - sampling_s) / samples


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and its process group, whether the run ended, failed, timed out or was interrupted."""
    if sys.platform == "win32":
        child.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _failure(argv: Sequence[str], what: str, err: IO[bytes]) -> PenstockError:
    tail = _read(err)[-STDERR_TAIL_BYTES:].decode(errors="replace").strip()
    output = f"; its stderr: {' | '.join(tail.splitlines())}" if tail else ", and its stderr is empty"
    return PenstockError(f"python -m {' '.join(argv)} {what}{output}", stage="bench")


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
