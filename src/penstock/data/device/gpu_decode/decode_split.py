"""The split of the images between CPU and GPU while both decode: a first measurement, then changes while training runs.

The CPU workers run ahead of the training loop. When the loop waits for them, they are at their limit and the GPU could
do more; when the loop finds its batches complete and waits for the GPU, the GPU has too much. That gives the direction
in which to try first; whether batches then arrive sooner decides.

`choose_split` measures one image before workers start and returns a policy for each field. `SplitController` observes
the training loop and passes windows of batches to the policies, which are pure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.slab_layout import ENCODED_SIZE_FIELDS
from penstock.data.fields.base import EncodedImage, SampleContext
from penstock.data.fields.gpu_image import SharedFraction, encoded_image
from penstock.data.fields.image import Image
from penstock.shards.guards.jpeg import inspect_jpeg

if TYPE_CHECKING:
    import torch

    from penstock.data.device.gpu_decode.batch_decoder import BatchDecoder

log = logging.getLogger("penstock")

MIN_WAIT = 0.05
"""Fraction of the time that the loop waits for one side; less is noise."""
FIRST_STEP, MIN_STEP, MAX_STEP = 0.1, 0.025, 0.2
"""Fractions of the images that are moved at a time."""
STEP_GROWTH = 1.25
"""Factor of a step relative to the one before in the same direction."""
FIRST_PAUSE, MAX_PAUSE = 6, 96
"""Windows without a step after the smallest step brought no gain; twice as many each time."""
MIN_STALL, NO_STALL = 0.03, 0.005
"""Fractions of the time that the GPU has no work from the training: above the first `auto` gives it more images, below
the second it takes images back."""
MIN_GAIN = 0.01
"""Fraction of the time between batches: a step that gains less is undone."""
SLOWDOWN = 0.1
"""Fraction of the time between batches: growth by more during a pause means that one side changed; steps are large."""
AUTO_FIRST_PAUSE, AUTO_MAX_PAUSE = 8, 256
"""Windows without a step of `auto` after one that brought no gain; twice as many each time."""
SETTLING_BATCHES = 12
"""Batches after a change that are not counted, because most of them were made before it."""
WINDOW_BATCHES = 16
"""Least number of batches in a window."""
WINDOW_S = 0.4
"""Least duration of a window in seconds."""
MIN_COPIES, MAX_COPIES, COPIES_BYTES = 16, 64, 64 << 20
"""Copies of one image that the GPU decodes in a measurement, because it is faster with long lists, and a batch of small
images is one: as many as have at most that many bytes when they are decoded."""
ROUNDS = 3
"""Rounds of a measurement; the fastest counts, because the others were disturbed."""
TYPICAL_DRAW = 0.5
"""Random number with which the window and the mirroring of the measured image are chosen."""
MIN_AUTO_FRACTION = 0.25
"""A GPU that would take less than this fraction decodes nothing with `auto`: it would slow the step down for little."""
MAX_AUTO_FRACTION = 0.5
"""Largest fraction of the images that `auto` gives to the GPU, because the GPU has a training to run."""

Direction = Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class SplitWindow:
    """Measurements of some consecutive batches.

    The longest wait and period are left out, because an epoch may have begun there.
    """

    cpu_wait: float
    """Fraction of the time that the loop waited for a batch that the CPU had not made."""
    gpu_wait: float
    """Fraction of the time that it waited for a batch that the GPU had not decoded; with a late batch this includes the
    GPU's normal time."""
    period_s: float
    """Seconds from one batch to the next, the loop's own work included."""
    stalled: float
    """Fraction of the time that the GPU had no work from the training."""

    @property
    def direction(self) -> Direction:
        """1: more for the GPU; -1: less; 0: the loop waits for neither side."""
        if self.cpu_wait > MIN_WAIT:
            return 1
        return -1 if self.gpu_wait > MIN_WAIT else 0


class SplitPolicy(Protocol):
    """Decides the split of one field."""

    fraction: float
    """Fraction of the images that the GPU decodes."""

    def update(self, window: SplitWindow) -> None:
        """Change the fraction, or keep it; windows are far enough apart to show the effect of the last change."""
        ...


class HybridSplit:
    """Finds the fraction with which batches arrive soonest, by trial.

    A step without a gain is undone, and the next one is half as long, in the opposite direction. The result is not the
    fraction with which both sides finish together: CPU cores that decode slow down those that the GPU needs for its own
    part, so the best fraction leaves some of them idle.
    """

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self._step = FIRST_STEP
        self._direction: Direction = 0
        self._before: tuple[float, float] | None = None
        """Fraction and period before the last step, until the step is judged."""
        self._pause = 0
        """Windows until the next step."""
        self._next_pause = FIRST_PAUSE
        self._pause_period_s = 0.0
        """Period when the pause began."""

    def update(self, window: SplitWindow) -> None:
        """Judge the last step, or take another."""
        before, self._before = self._before, None
        if not window.direction:
            return
        if before is not None and window.period_s > (1 - MIN_GAIN) * before[1]:
            self._undo(*before)
            return
        if before is not None:
            self._step = min(MAX_STEP, STEP_GROWTH * self._step)
        elif self._pause and window.period_s > (1 + SLOWDOWN) * self._pause_period_s:
            self._pause, self._next_pause, self._direction = 0, FIRST_PAUSE, window.direction
        elif self._pause:
            self._pause -= 1
            self._step = FIRST_STEP  # the effect of a small step would be lost in the noise
            return
        self._try_step(window)

    def _try_step(self, window: SplitWindow) -> None:
        self._direction = self._direction or window.direction
        if self.fraction == (1.0 if self._direction > 0 else 0.0):
            self._direction = -self._direction  # the fraction is at its end
        self._before = self.fraction, window.period_s
        self.fraction = min(1.0, max(0.0, self.fraction + self._direction * self._step))

    def _undo(self, fraction: float, period_s: float) -> None:
        self.fraction = fraction
        self._direction = -self._direction
        if self._step == MIN_STEP:
            self._pause, self._pause_period_s = self._next_pause, period_s
            self._next_pause = min(MAX_PAUSE, 2 * self._next_pause)
        self._step = max(MIN_STEP, self._step / 2)


class AutoSplit:
    """Lets the CPU decode, and the GPU help where batches then arrive sooner although its own steps become slower.

    Each change is judged by the next window, and undone if it brought no gain.
    """

    def __init__(self, limit: float) -> None:
        self.fraction = 0.0
        self._limit = limit
        self._max_step = limit
        """Largest step towards the GPU; halved after each that brought no gain."""
        self._before: tuple[float, float] | None = None
        """Fraction before the last step, and the longest period with which the step is kept."""
        self._pause = 0
        """Windows until the next step."""
        self._next_pause = AUTO_FIRST_PAUSE

    def update(self, window: SplitWindow) -> None:
        """Give the GPU more where the training stalls for the CPU; less where it does not stall, or the GPU is late."""
        before, self._before = self._before, None
        if before is not None and window.period_s > before[1]:
            self._undo(before[0])
        elif self._pause:
            self._pause -= 1
        elif window.stalled > MIN_STALL:
            self._reduce_stall(window)
        elif self.fraction and window.stalled < NO_STALL:
            self._move(-FIRST_STEP, (1 + MIN_GAIN) * window.period_s)

    def _reduce_stall(self, window: SplitWindow) -> None:
        max_period_s = (1 - MIN_GAIN) * window.period_s
        if window.direction > 0 and self.fraction < self._limit:
            enough = (1 - self.fraction) * window.stalled  # with that much less to do the CPU is as fast as the step
            self._move(min(self._max_step, max(FIRST_STEP, enough)), max_period_s)
        elif window.direction < 0 and self.fraction:
            self._move(-FIRST_STEP, max_period_s)

    def _move(self, step: float, max_period_s: float) -> None:
        self._before = self.fraction, max_period_s
        self.fraction = min(self._limit, max(0.0, self.fraction + step))

    def _undo(self, fraction: float) -> None:
        self._max_step = max(FIRST_STEP, self._max_step / 2) if fraction < self.fraction else self._max_step
        self.fraction = fraction
        self._pause, self._next_pause = self._next_pause, min(AUTO_MAX_PAUSE, 2 * self._next_pause)


class FixedSplit:
    """A fraction that does not change."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def update(self, window: SplitWindow) -> None:
        """Keep the fraction."""


class _Batch(NamedTuple):
    period_s: float
    """Seconds since the batch before."""
    cpu_s: float
    """Seconds that the loop waited for the CPU."""
    gpu_s: float
    """Seconds that the loop waited for the GPU."""


class SplitController:
    """Measures for which side the training loop waits, and lets the policies change the fractions that workers read.

    The transfer to the device calls it from the loop's thread.
    """

    def __init__(
        self, policies: Sequence[tuple[SharedFraction, SplitPolicy]] = (), clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.workers_ready: Callable[[], bool] = lambda: True
        """Whether all workers have started: until then the loop waits for the CPU in any case."""
        self._policies = policies
        self._clock = clock
        self._requested_at = self._cpu_s = 0.0
        self._last_received = clock.now()
        self._stalled_s = 0.0
        """The GPU's total stall when the window began."""
        self._batches: list[_Batch] = []
        self._settling = SETTLING_BATCHES

    def batch_requested(self) -> None:
        """Note that the transfer begins to wait for a batch from the CPU."""
        self._requested_at = self._clock.now()

    def batch_sent(self, *, ahead: bool) -> None:
        """Note that the batch is being sent; `ahead` if the loop has not yet received the one before it."""
        if not ahead:
            self._cpu_s = self._clock.now() - self._requested_at

    def batch_received(self, waited_s: float, stalled_s: Callable[[], float]) -> None:
        """Note that the loop has the batch after waiting for the GPU; `stalled_s` is read at the ends of windows."""
        now = self._clock.now()
        batch = _Batch(now - self._last_received, self._cpu_s, waited_s)
        self._last_received, self._cpu_s = now, 0.0
        if not self.workers_ready():
            self._settling = SETTLING_BATCHES
            self._batches.clear()
        elif self._settling:
            self._settling -= 1
            if not self._settling:
                self._stalled_s = stalled_s()
        else:
            self._batches.append(batch)
            if len(self._batches) >= WINDOW_BATCHES and sum(each.period_s for each in self._batches) >= WINDOW_S:
                self._end_window(stalled_s())

    def _end_window(self, stalled_s: float) -> None:
        window = self._window(stalled_s - self._stalled_s)
        for shared, policy in self._policies:
            policy.update(window)
            if policy.fraction != shared.value:
                log.debug("%.0f%% of the images to the GPU: %s", 100 * policy.fraction, window)
                shared.value = policy.fraction
                self._settling = SETTLING_BATCHES
        self._stalled_s = stalled_s
        self._batches.clear()

    def _window(self, stalled_s: float) -> SplitWindow:
        periods, cpu, gpu = (sorted(column)[:-1] for column in zip(*self._batches, strict=True))
        seconds = sum(periods)
        return SplitWindow(
            sum(cpu) / seconds,
            sum(gpu) / seconds,
            seconds / len(periods),
            stalled_s / sum(batch.period_s for batch in self._batches),
        )


def choose_split(
    image: Image, decoder: BatchDecoder, jpeg: bytes | None, device: torch.device, workers: int
) -> SplitPolicy:
    """Return the policy for a field, with the rates of both sides measured on a JPEG of the data, if there is one."""
    if image.decode == "gpu":
        return FixedSplit(1.0)
    if jpeg is None:
        log.info("decode=%r: the CPU decodes, because the first sample has no JPEG to measure with", image.decode)
        return FixedSplit(0.0)
    array = np.zeros((_copies(image), *image.shape), np.uint8)
    info = inspect_jpeg(jpeg)
    draws = [TYPICAL_DRAW] * image.random_numbers
    cpu_s = _fastest(lambda: image.decode_into(".jpg", memoryview(jpeg), array[0], SampleContext(draws)))
    note = encoded_image(jpeg, info, image.geometry(info.height, info.width, draws))
    gpu_s = _seconds_on_gpu(decoder, jpeg, note, array, device)
    if gpu_s is None:
        log.info("decode=%r: the CPU decodes, because the first JPEG is longer than its pixels", image.decode)
        return FixedSplit(0.0)
    rates = f"the GPU decodes {1 / gpu_s:.0f} a second, {workers} workers {workers / cpu_s:.0f}"
    fraction = balanced_fraction(1 / gpu_s, workers / cpu_s)
    if image.decode == "hybrid":
        log.info("decode='hybrid': %.0f%% of the images to the GPU at first: %s", 100 * fraction, rates)
        return HybridSplit(fraction)
    limit = auto_limit(fraction)
    log.info("decode='auto': up to %.0f%% of the images to the GPU, if the training waits: %s", 100 * limit, rates)
    return AutoSplit(limit) if limit else FixedSplit(0.0)


def balanced_fraction(gpu_rate: float, cpu_rate: float) -> float:
    """Return the fraction for the GPU with which both sides, at their own rates, finish together."""
    return gpu_rate / (gpu_rate + cpu_rate)


def auto_limit(fraction: float) -> float:
    """Return the most that `auto` gives to a GPU, by the fraction with which both sides would finish together."""
    return 0.0 if fraction < MIN_AUTO_FRACTION else min(fraction, MAX_AUTO_FRACTION)


def _seconds_on_gpu(
    decoder: BatchDecoder, jpeg: bytes, note: EncodedImage, array: NDArray[np.uint8], device: torch.device
) -> float | None:
    """Return seconds per image; None if the JPEG does not fit into its slot."""
    import torch

    if len(jpeg) > array[0].nbytes:
        return None
    for slot in array:
        slot.reshape(-1)[: len(jpeg)] = np.frombuffer(jpeg, np.uint8)
    encoded = np.full((len(array), ENCODED_SIZE_FIELDS), note, np.int32)

    def decode() -> None:
        decoder.decode_batch(array, encoded, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # no training runs yet that this could delay

    decode()
    return _fastest(decode) / len(array)


def _fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)


def _copies(image: Image) -> int:
    return max(MIN_COPIES, min(MAX_COPIES, COPIES_BYTES // prod(image.shape)))
