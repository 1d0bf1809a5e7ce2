"""Chooses how arrays are stored, from the bandwidth of the storage and the number of cores, and gives the reason.

Samples become ready at the lower of two rates: that of reading their bytes and that of decoding them. Raw arrays take
the most bytes and no decoding, deflated ones (NPZ) fewer bytes and much decoding; zstd lies between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from penstock.errors import PenstockError
from penstock.shards.codecs.by_suffix import codec_of, verify_part
from penstock.shards.pack.convert import StoredPart, convert_parts
from penstock.shards.pack.options import ArrayCodec, PackOptions
from penstock.shards.pack.plan import read_trial_samples
from penstock.shards.pack.sources import PackSource

EQUAL_RATE_SHARE = 0.97
"""Codecs within 3% of the fastest count as equally fast; of these, the one with the smallest samples is chosen."""
_REPEATS = 3
"""How often the decoding of a sample is timed; the fastest time counts."""


@dataclass(frozen=True, slots=True)
class CodecCandidate:
    """A codec for the arrays, with the size and the decoding time of a sample that is stored with it."""

    codec: ArrayCodec
    sample_bytes: float
    """Mean bytes of a stored sample, all parts."""
    decode_s: float
    """Core-seconds to decode one sample, its image included."""

    def rate(self, bytes_per_s: float, cores: int) -> float:
        """Return the samples per second if reading and decoding overlap."""
        return min(bytes_per_s / self.sample_bytes, cores / self.decode_s)


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """The codec and the reason."""

    codec: ArrayCodec
    reason: str
    candidates: tuple[CodecCandidate, ...]


def choose_codec(
    sources: Sequence[PackSource],
    options: PackOptions,
    bytes_per_s: float,
    cores: int,
    timer: Callable[[], float] = time.perf_counter,
) -> CodecChoice:
    """Measure each codec on a few samples; choose the fastest, and among equally fast ones the smallest."""
    samples = [parts for _, parts in read_trial_samples(sources) if isinstance(parts, list)]
    if not any(codec_of(suffix) in ("npz", "npy", "npy.zst") for parts in samples for suffix, _ in parts):
        return CodecChoice("keep", "there are no arrays to store", ())
    codecs: tuple[ArrayCodec, ...] = ("zstd", "raw") if options.casts else ("keep", "zstd", "raw")
    candidates = tuple(
        candidate for codec in codecs if (candidate := _measure_codec(codec, samples, options, timer)) is not None
    )
    return decide_codec(candidates, bytes_per_s, cores)


def decide_codec(candidates: tuple[CodecCandidate, ...], bytes_per_s: float, cores: int) -> CodecChoice:
    """Choose from candidates that have been measured."""
    if not candidates:
        return CodecChoice("keep", "no sample could be converted, so arrays stay as they are", ())
    best = max(candidate.rate(bytes_per_s, cores) for candidate in candidates)
    fast = [candidate for candidate in candidates if candidate.rate(bytes_per_s, cores) >= EQUAL_RATE_SHARE * best]
    chosen = min(fast, key=lambda candidate: candidate.sample_bytes)
    rates = ", ".join(
        f"{candidate.codec} {candidate.rate(bytes_per_s, cores):.0f}/s "
        f"({candidate.sample_bytes / 1e6:.2f} MB, {candidate.decode_s * 1e3:.1f} ms)"
        for candidate in candidates
    )
    limit = "storage" if bytes_per_s / chosen.sample_bytes < cores / chosen.decode_s else "decoding"
    reason = (
        f"storage gives {bytes_per_s / 1e6:.0f} MB/s to {cores} cores: {rates}; "
        f"with {chosen.codec}, {limit} is the limit"
    )
    return CodecChoice(chosen.codec, reason, candidates)


def _measure_codec(
    codec: ArrayCodec, samples: list[list[StoredPart]], options: PackOptions, timer: Callable[[], float]
) -> CodecCandidate | None:
    """Convert and decode the samples with one codec; None if none of them can be converted."""
    candidate_options = replace(options, arrays=codec)
    sizes: list[int] = []
    seconds: list[float] = []
    for parts in samples:
        try:
            stored = convert_parts(parts, candidate_options)
            seconds.append(min(_time_decode(stored, timer) for _ in range(_REPEATS)))
        except PenstockError:
            continue
        sizes.append(sum(len(data) for _, data in stored))
    return CodecCandidate(codec, sum(sizes) / len(sizes), median(seconds)) if sizes else None


def _time_decode(parts: list[StoredPart], timer: Callable[[], float]) -> float:
    start = timer()
    for suffix, data in parts:
        verify_part(suffix, data)
    return timer() - start
