"""The decode probe: how many samples per second do n processes decode when the encoded bytes are in memory already?

`input_from_shard` takes samples from the user's shard and `synthetic_input` makes some; `probe_decode` measures them at
1, 2, 4 … processes. Each process is a child that runs `main` of this module.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.cores import usable_cores
from penstock.core.sample import Part
from penstock.core.slab_layout import SlotSpec
from penstock.data.fields import Field, Image
from penstock.data.fields.base import SampleContext, has_fixed_shape
from penstock.engine.worker_main import limit_library_threads
from penstock.errors import PenstockError, SampleError, SettingError, ShardError, WorkerCrash
from penstock.probe.results import DecodePoint, DecodeRates
from penstock.shards.index import ShardIndex
from penstock.shards.open_shard import open_shard
from penstock.shards.scan import index_shard

BUDGET_S = 16.0
POINT_S = 2.0
"""Seconds of decoding at each number of workers, where the budget allows it."""
LEAST_POINT_S = 0.25
"""Seconds of decoding at each number of workers, at least."""
TYPICAL_DRAW = 0.5
"""Random number with which windows are chosen and images are mirrored."""
START_TIMEOUT_S = 30.0
"""A process that is not ready by then is treated as failed."""
_STDERR_TAIL = 300

MeasureRate = Callable[[Path, int, float], DecodePoint]
"""Measures (job file, number of processes, seconds of decoding)."""


# -- the measurement -----------------------------------------------------------------------------------------------


def probe_decode(
    decode_input: DecodeInput,
    *,
    workers: Sequence[int] | None = None,
    budget_s: float = BUDGET_S,
    clock: Clock = SYSTEM_CLOCK,
    measure_rate: MeasureRate | None = None,
) -> DecodeRates:
    """Return the decode rates at 1, 2, 4 … workers up to the usable cores, or at the given numbers of workers.

    When the budget is used up, the points measured so far are the result; there is always at least one.
    `measure_rate` measures one point; tests replace it.
    """
    counts = tuple(worker_counts(usable_cores()) if workers is None else workers)
    if not counts or counts[0] < 1 or list(counts) != sorted(set(counts)):
        raise SettingError(f"workers={list(counts)} do not rise from 1 on", advice="For example workers=[1, 2, 4]")
    measure = measure_rate or measure_in_processes
    points: list[DecodePoint] = []
    began = clock.now()
    with tempfile.TemporaryDirectory(prefix="penstock-probe-") as folder:
        job = Path(folder) / "job"
        job.write_bytes(_pickled(decode_input))
        for count in counts:
            left_s = began + budget_s - clock.now()
            if points and left_s < LEAST_POINT_S * 2:  # starting the processes takes about as long as decoding
                break
            seconds = max(LEAST_POINT_S, min(POINT_S, left_s / (len(counts) - len(points)) / 2))
            points.append(measure(job, count, seconds))
    return DecodeRates(
        points=tuple(points),
        sample_bytes=decode_input.sample_bytes,
        decoded_bytes=decode_input.decoded_bytes,
        samples=len(decode_input.samples),
        bad=decode_input.bad,
        source=decode_input.source,
        seconds=clock.now() - began,
    )


def _pickled(decode_input: DecodeInput) -> bytes:
    try:
        return pickle.dumps(decode_input)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # a user's field class, defined in a function
        raise SettingError(f"the fields cannot be sent to a process: {error}", stage="probe") from error


def worker_counts(cores: int) -> list[int]:
    """Return the powers of two below the number of cores, and the number of cores."""
    counts = [1 << power for power in range(cores.bit_length()) if 1 << power < cores]
    return [*counts, cores]


def measure_in_processes(job: Path, workers: int, seconds: float) -> DecodePoint:
    """Measure the rate of several processes that decode the same job for the given seconds.

    All processes start decoding together when the last one is ready, so that none is measured while others import.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(_DecodeChild(job, number, seconds)) for number in range(workers)]
        watchdog = threading.Timer(START_TIMEOUT_S + 2 * seconds, _kill, (children,))
        watchdog.daemon = True
        watchdog.start()
        stack.callback(watchdog.cancel)
        for child in children:
            child.read_line()
        for child in children:
            child.start_decoding()
        lines = [child.read_line().split() for child in children]
    results = [DecodeResult(int(samples), float(took_s), float(cpu_s)) for samples, took_s, cpu_s in lines]
    return DecodePoint(
        workers,
        samples_per_s=sum(each.samples / each.seconds for each in results),
        cpu_s_per_sample=sum(each.cpu_s for each in results) / sum(each.samples for each in results),
    )


def _kill(children: Sequence[_DecodeChild]) -> None:
    for child in children:
        child.kill()


class _DecodeChild:
    """A child process that runs `main`; it is killed and reaped at the end of the `with` block."""

    def __init__(self, job: Path, number: int, seconds: float) -> None:
        self._stderr = job.with_name(f"stderr-{number}")
        program = f"import sys; sys.path[:] = {sys.path!r}; from penstock.probe.decode import main; main()"
        with open(self._stderr, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, str(job), str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=limit_library_threads(dict(os.environ)),
            )

    def read_line(self) -> str:
        """Return the next line that the child prints; raise WorkerCrash if the child has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            tail = self._stderr.read_text(errors="replace")[-_STDERR_TAIL:].strip()
            reason = tail.splitlines()[-1] if tail else "killed, or it took too long"
            raise WorkerCrash(f"a decoding process ended early: {reason}", stage="probe")
        return line

    def start_decoding(self) -> None:
        """Send the start signal that the child waits for when it is ready."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the child has ended: the next `read_line` reports it
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the child, whatever it is doing."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


# -- in the child process ------------------------------------------------------------------------------------------


class DecodeResult(NamedTuple):
    """The samples that one process decoded, and the wall-clock and CPU seconds that this took."""

    samples: int
    seconds: float
    cpu_s: float


def main() -> None:
    """Load the job, print "ready", wait for the start signal, decode, and print the result.

    The arguments are `JOB SECONDS`; the parent process wrote the job into a folder of its own.
    """
    decode_input: DecodeInput = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301
    decode_for(decode_input, 0.0)  # the first sample loads the libraries
    print("ready", flush=True)
    if sys.stdin.readline():  # the line is empty if the parent has ended
        print(*decode_for(decode_input, float(sys.argv[2])), flush=True)


def decode_for(
    decode_input: DecodeInput,
    seconds: float,
    clock: Clock = SYSTEM_CLOCK,
    cpu_s: Callable[[], float] = time.process_time,
) -> DecodeResult:
    """Decode the samples over and over for the given seconds, as a worker of the loader does; at least one sample."""
    slots = {
        name: np.empty(slot.shape, slot.dtype)
        for name, slot in decode_input.slots.items()
        if has_fixed_shape(decode_input.fields, name)
    }
    began, cpu_began = clock.now(), cpu_s()
    for count, sample in enumerate(cycle(decode_input.samples), 1):
        for name, field, suffix, data, context in _steps(decode_input.fields, sample):
            slot = slots.get(name)
            if slot is None:
                field.decode_value(suffix, data, context)
            else:
                field.decode_into(suffix, data, slot, context)
        elapsed_s = clock.now() - began
        if elapsed_s >= seconds:
            return DecodeResult(count, max(elapsed_s, 1e-9), cpu_s() - cpu_began)
    raise AssertionError("the input holds at least one sample")  # pragma: no cover


# -- the samples ---------------------------------------------------------------------------------------------------

Sample = Mapping[str, bytes]
"""The encoded parts of a sample by suffix."""

SAMPLES_MAX = 32
BYTES_MAX = 16 << 20
"""Encoded bytes of all samples together: each process has a copy. The first sample may have FIRST_BYTES_MAX."""
FIRST_BYTES_MAX = 256 << 20
SYNTHETIC_SAMPLES = 16
SYNTHETIC_SIZE = 224
"""Pixels per side of the synthetic images."""


@dataclass(frozen=True, slots=True)
class DecodeInput:
    """Encoded samples that are known to decode, the fields that decode them, and the arrays that result."""

    samples: tuple[Sample, ...]
    fields: Mapping[str, Field]
    slots: Mapping[str, SlotSpec]
    """Shape and type of the arrays of one sample; every sample has the same where the field has a fixed shape."""
    source: str
    """The origin of the samples, in words."""
    bad: int = 0
    """Number of samples that were left out because they did not decode."""

    @property
    def sample_bytes(self) -> float:
        """Mean encoded size of a sample."""
        return sum(len(data) for sample in self.samples for data in sample.values()) / len(self.samples)

    @property
    def decoded_bytes(self) -> int:
        """Size of one decoded sample in a batch."""
        return sum(slot.size for slot in self.slots.values())


def input_from_shard(shard: str | os.PathLike[str], fields: Mapping[str, Field]) -> DecodeInput:
    """Return the first samples of a shard, as many as the limits above allow."""
    index = index_shard(shard)
    suffixes = {suffix for field in fields.values() for suffix in field.suffixes}
    chosen = dict(_choose_samples(index, suffixes))
    if not chosen:
        reason = f"its first sample is larger than {FIRST_BYTES_MAX >> 20} MiB" if len(index) else "has no samples"
        raise ShardError(reason, shard=os.fspath(shard), stage="probe")
    samples: dict[int, dict[str, bytes]] = {number: {} for number in chosen}
    parts = [(number, part) for number, sample_parts in chosen.items() for part in sample_parts]
    with open_shard(shard) as source:
        for number, part in sorted(parts, key=lambda each: each[1].offset):  # compressed shards are read forward only
            samples[number][part.suffix] = source.read_at(part.offset, part.length)
    return _decodable(list(samples.values()), fields, os.path.basename(os.fspath(shard)))


def synthetic_input(size: int = SYNTHETIC_SIZE, count: int = SYNTHETIC_SAMPLES) -> DecodeInput:
    """Return ImageNet-like images that decode to squares, for callers that have no shard."""
    from penstock.testing import IMAGENET, sample_parts

    samples = [{".jpg": sample_parts(IMAGENET, number)[".jpg"]} for number in range(count)]
    return _decodable(samples, {"image": Image(".jpg", size=size, fit="stretch")}, "synthetic ImageNet-like images")


def _steps(fields: Mapping[str, Field], sample: Sample) -> Iterator[tuple[str, Field, str, memoryview, SampleContext]]:
    """Yield (name, field, suffix, part, context) of each field, an image before the fields that are `like` it."""
    context = SampleContext()
    for name, field in sorted(fields.items(), key=lambda item: item[1].like is not None):
        suffix, data = part_for(field, sample) if field.suffixes else ("", b"")
        context.draws = [TYPICAL_DRAW] * field.random_numbers
        yield name, field, suffix, memoryview(data), context
        if field.has_geometry and context.geometry is not None:
            context.geometries[name] = context.geometry


def part_for(field: Field, sample: Sample) -> tuple[str, bytes]:
    """Return suffix and bytes of the part that a field reads: the first of its suffixes that the sample has."""
    for suffix in field.suffixes:
        if suffix in sample:
            return suffix, sample[suffix]
    raise SampleError(f"has no part {' or '.join(field.suffixes)}", stage="decode")


def _choose_samples(index: ShardIndex, suffixes: set[str]) -> Iterator[tuple[int, list[Part]]]:
    """Yield numbers and parts of samples up to the limits."""
    total = 0
    for number in range(min(len(index), SAMPLES_MAX)):
        parts = [part for part in index.sample(number).parts if part.suffix in suffixes]
        total += sum(part.length for part in parts)
        if total > (BYTES_MAX if number else FIRST_BYTES_MAX):
            return
        yield number, parts


def _decodable(samples: list[dict[str, bytes]], fields: Mapping[str, Field], source: str) -> DecodeInput:
    """Decode each sample once; leave out and count those that fail or differ in shape from the first."""
    good: list[Sample] = []
    slots: dict[str, SlotSpec] = {}
    first_error: PenstockError | None = None
    for sample in samples:
        try:
            found = _slots(_decode_values(sample, fields))
            if good and any(has_fixed_shape(fields, name) and found.get(name) != slots.get(name) for name in fields):
                raise SampleError("has another shape than the first", stage="decode")
        except Exception as error:  # a user's field class may raise anything
            first_error = first_error or _as_penstock_error(error)
            continue
        slots = slots or found
        good.append(sample)
    if not good:
        raise first_error or SampleError("there is no sample to decode", stage="probe")
    return DecodeInput(tuple(good), dict(fields), slots, source, len(samples) - len(good))


def _as_penstock_error(error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return SampleError(f"{type(error).__name__}: {error}", stage="decode")


def _decode_values(sample: Sample, fields: Mapping[str, Field]) -> dict[str, Any]:
    return {
        name: field.decode_value(suffix, data, context) for name, field, suffix, data, context in _steps(fields, sample)
    }


def _slots(values: Mapping[str, Any]) -> dict[str, SlotSpec]:
    arrays: dict[str, NDArray[Any]] = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return {name: SlotSpec(array.shape, array.dtype.str) for name, array in arrays.items()}
