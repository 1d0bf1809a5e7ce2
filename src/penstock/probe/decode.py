"""How many samples a second do so many processes decode, if their bytes are in memory already?"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.cores import usable_cores
from penstock.engine.worker_main import limit_library_threads
from penstock.errors import SettingError, WorkerCrash
from penstock.probe.decode_process import DecodeResult
from penstock.probe.decode_samples import DecodeMaterial
from penstock.probe.results import DecodePoint, DecodeRates

BUDGET_S = 16.0
EACH_S = 2.0
"""Decoding at each number of workers, where there is time."""
LEAST_S = 0.25
START_S = 30.0
"""A process that is not ready by then never will be."""
_STDERR_TAIL = 300

Rate = Callable[[Path, int, float], DecodePoint]
"""Of so many processes, each decoding the job for so many seconds."""


def probe_decode(
    material: DecodeMaterial,
    *,
    workers: Sequence[int] | None = None,
    budget_s: float = BUDGET_S,
    clock: Clock = SYSTEM_CLOCK,
    rate: Rate | None = None,
) -> DecodeRates:
    """Rates at 1, 2, 4 … workers up to the usable cores, or at those given; `rate` measures one of them.

    When the time is up the points so far are the result; there is always one.
    """
    counts = tuple(worker_counts(usable_cores()) if workers is None else workers)
    if not counts or counts[0] < 1 or list(counts) != sorted(set(counts)):
        raise SettingError(f"workers={list(counts)} do not rise from 1 on", advice="For example workers=[1, 2, 4]")
    measure = rate or rate_in_processes
    points: list[DecodePoint] = []
    began = clock.now()
    with tempfile.TemporaryDirectory(prefix="penstock-probe-") as folder:
        job = Path(folder) / "job"
        job.write_bytes(_pickled(material))
        for count in counts:
            left_s = began + budget_s - clock.now()
            if points and left_s < LEAST_S * 2:  # a process takes about as long to start
                break
            seconds = max(LEAST_S, min(EACH_S, left_s / (len(counts) - len(points)) / 2))
            points.append(measure(job, count, seconds))
    return DecodeRates(
        points=tuple(points),
        sample_bytes=material.sample_bytes,
        decoded_bytes=material.decoded_bytes,
        samples=len(material.samples),
        bad=material.bad,
        source=material.source,
        seconds=clock.now() - began,
    )


def _pickled(material: DecodeMaterial) -> bytes:
    try:
        return pickle.dumps(material)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # a field of the user's own, made in a function
        raise SettingError(f"the fields cannot be sent to a process: {error}", stage="probe") from error


def worker_counts(cores: int) -> list[int]:
    """Powers of two below the cores, then all of them."""
    counts = [1 << power for power in range(cores.bit_length()) if 1 << power < cores]
    return [*counts, cores]


def rate_in_processes(job: Path, workers: int, seconds: float) -> DecodePoint:
    """All processes get ready first and begin together, so that nobody decodes while others still import."""
    with ExitStack() as stack:
        children = [stack.enter_context(_DecodeChild(job, number, seconds)) for number in range(workers)]
        alarm = threading.Timer(START_S + 2 * seconds, _kill, (children,))
        alarm.daemon = True
        alarm.start()
        stack.callback(alarm.cancel)
        for child in children:
            child.answer()
        for child in children:
            child.begin()
        answers = [child.answer().split() for child in children]
    decoded = [DecodeResult(int(samples), float(took_s), float(cpu_s)) for samples, took_s, cpu_s in answers]
    return DecodePoint(
        workers,
        samples_per_s=sum(each.samples / each.seconds for each in decoded),
        cpu_s_per_sample=sum(each.cpu_s for each in decoded) / sum(each.samples for each in decoded),
    )


def _kill(children: Sequence[_DecodeChild]) -> None:
    for child in children:
        child.kill()


class _DecodeChild:
    """A process that decodes (see `decoding.py`), from its start to its end."""

    def __init__(self, job: Path, number: int, seconds: float) -> None:
        self._stderr = job.with_name(f"stderr-{number}")
        program = f"import sys; sys.path[:] = {sys.path!r}; from penstock.probe.decode_process import main; main()"
        with open(self._stderr, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, str(job), str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=limit_library_threads(dict(os.environ)),
            )

    def answer(self) -> str:
        """Its next line; WorkerCrash if it is gone."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            tail = self._stderr.read_text(errors="replace")[-_STDERR_TAIL:].strip()
            reason = tail.splitlines()[-1] if tail else "killed, or it took too long"
            raise WorkerCrash(f"a decoding process ended early: {reason}", stage="probe")
        return line

    def begin(self) -> None:
        """Off it goes."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it is gone: `answer` will say so
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Whatever it is doing."""
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
