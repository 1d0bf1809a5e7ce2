"""How many of the pictures the card decodes to begin with: measured by one of them, before workers start."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.core.slab_layout import ENCODED_SIZE_FIELDS
from penstock.data.device.gpu_decode.decode_split import AutoSplit, FixedSplit, HybridSplit, SplitPolicy
from penstock.data.device.gpu_decode.images import BatchDecoder
from penstock.data.fields.base import EncodedImage
from penstock.data.fields.image import Image
from penstock.shards.guards.jpeg import inspect_jpeg

log = logging.getLogger("penstock")

LEAST_TRIED, MOST_TRIED, TRIED_BYTES = 16, 64, 64 << 20
"""Copies of one picture that the card is given at a time, to be measured: it is quicker with long lists, and a batch of
small pictures is one. As many as have so many bytes when they are decoded."""
ROUNDS = 3
"""The best of them counts: the others were disturbed."""
LEAST_AUTO = 0.25
"""What the card would take less than this of is left to the cores: it would slow the step down for little."""
MOST_AUTO = 0.5
"""Of the pictures, where we decide: the card has a training to do."""


def choose_split(
    image: Image, pictures: BatchDecoder, jpeg: bytes | None, device: torch.device, workers: int
) -> SplitPolicy:
    """By a picture of the data, if there is one."""
    if image.decode == "gpu":
        return FixedSplit(1.0)
    if jpeg is None:
        log.info("decode=%r: the first sample has no JPEG to measure with, so the cores decode", image.decode)
        return FixedSplit(0.0)
    array = np.zeros((_tried(image), *_shape(image)), np.uint8)
    core_s = _best(lambda: image.decode_into(".jpg", memoryview(jpeg), array[0]))
    card_s = _on_card(pictures, jpeg, array, device)
    if card_s is None:
        log.info("decode=%r: the first JPEG is longer than its pixels, so the cores decode", image.decode)
        return FixedSplit(0.0)
    rates = f"the card decodes {1 / card_s:.0f} a second, {workers} workers {workers / core_s:.0f}"
    share = balanced_fraction(1 / card_s, workers / core_s)
    if image.decode == "hybrid":
        log.info("decode='hybrid': %.0f%% of the pictures to the card to begin with: %s", 100 * share, rates)
        return HybridSplit(share)
    most = auto_limit(share)
    log.info("decode='auto': up to %.0f%% of the pictures to the card, if the training waits: %s", 100 * most, rates)
    return AutoSplit(most) if most else FixedSplit(0.0)


def balanced_fraction(card_rate: float, cores_rate: float) -> float:
    """Of the pictures, for the card, by each side's rate alone: both then finish together."""
    return card_rate / (card_rate + cores_rate)


def auto_limit(share: float) -> float:
    """Of the pictures, for a card that has a training to do, and would finish together with the cores at that share."""
    return 0.0 if share < LEAST_AUTO else min(share, MOST_AUTO)


def _on_card(pictures: BatchDecoder, jpeg: bytes, array: NDArray[np.uint8], device: torch.device) -> float | None:
    """Seconds per picture; None if it has no room in its slot."""
    if len(jpeg) > array[0].nbytes:
        return None
    info = inspect_jpeg(jpeg)
    for slot in array:
        slot.reshape(-1)[: len(jpeg)] = np.frombuffer(jpeg, np.uint8)
    encoded = np.full((len(array), ENCODED_SIZE_FIELDS), EncodedImage(len(jpeg), info.height, info.width), np.int32)

    def decode() -> None:
        pictures.decode_batch(array, encoded, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # nothing is being trained yet

    decode()
    return _best(decode) / len(array)


def _best(work: Callable[[], object]) -> float:
    """Seconds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)


def _tried(image: Image) -> int:
    return max(LEAST_TRIED, min(MOST_TRIED, TRIED_BYTES // prod(_shape(image))))


def _shape(image: Image) -> tuple[int, ...]:
    return (3, *image.sides) if image.layout == "CHW" else (*image.sides, 3)
