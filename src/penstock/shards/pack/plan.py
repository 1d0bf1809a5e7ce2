"""Decides which samples go into which output shard: a pure function of the sources and the options.

So a second run, on this machine or another, finds the same tasks, and only does those that are missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError, SettingError, ShardError
from penstock.shards.index import ShardIndex
from penstock.shards.pack.convert import array_names, convert_parts, packed_key
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.sources import PackSource, SampleSelection, read_samples
from penstock.shards.tar_header import TAR_BLOCK
from penstock.storage.object_store.url import is_remote

Length = TypeVar("Length", int, NDArray[np.int64])

TRIAL_SAMPLES = 8
"""Converted before planning to learn how sizes change. Always the same ones, so the plan is always the same."""


@dataclass(frozen=True, slots=True)
class PackTask:
    """One output shard. Small, picklable, and needs nothing but the files: any executor can run it."""

    name: str
    selections: tuple[SampleSelection, ...]
    options: PackOptions
    fingerprint: str
    """Of the options and the samples: an output with the same fingerprint need not be made again."""


@dataclass(frozen=True)
class SampleRun:
    """A run of whole samples of one source: [first, last) in its `whole` column."""

    source: int
    first: int
    last: int


@dataclass(frozen=True)
class PackPlan:
    """All tasks, held as cuts: samples become objects only when their task is made."""

    sources: Sequence[PackSource]
    options: PackOptions
    shards: list[list[SampleRun]]
    size_ratio: float
    """Bytes out per byte in, as seen on the tried samples."""
    prefixes: tuple[str, ...]
    """What goes in front of each source's keys: nothing, unless two sources share some."""

    @property
    def prefix_keys(self) -> bool:
        """Whether keys get their source's name in front."""
        return any(self.prefixes)

    @property
    def samples(self) -> int:
        """How many samples will be packed."""
        return sum(len(source.complete) for source in self.sources)

    @property
    def source_bytes(self) -> int:
        """What those samples weigh now."""
        return sum(int(_sample_bytes(source.index)[source.complete].sum()) for source in self.sources)

    def fingerprint(self) -> str:
        """Of everything that decides the output."""
        facts = [(_source_identity(source.path), asdict(source.index.binding)) for source in self.sources]
        return _digest(self.options.output_settings(), facts, [[asdict(cut) for cut in cuts] for cuts in self.shards])

    def tasks(self) -> Iterator[PackTask]:
        """The tasks, one at a time."""
        for number, cuts in enumerate(self.shards):
            selections = tuple(self._take(cut) for cut in cuts)
            bindings = [asdict(self.sources[cut.source].index.binding) for cut in cuts]
            content = [
                (_source_identity(take.path), take.prefix, [(s.key, [p.length for p in s.parts]) for s in take.samples])
                for take in selections
            ]
            fingerprint = _digest(self.options.output_settings(), bindings, content)
            yield PackTask(self.name(number), selections, self.options, fingerprint)

    def name(self, number: int) -> str:
        """The file name of an output shard."""
        return f"{self.options.prefix}-{number:06d}.tar"

    def _take(self, cut: SampleRun) -> SampleSelection:
        source = self.sources[cut.source]
        return source.select(source.complete[cut.first : cut.last].tolist(), self.prefixes[cut.source])


def make_plan(sources: Sequence[PackSource], options: PackOptions) -> PackPlan:
    """Cut the sources into output shards of about the wanted size."""
    if not any(len(source.complete) for source in sources):
        raise ShardError("there is no whole sample to pack", stage="pack")
    _check_casts(sources, options)
    growth = _size_ratio(sources, options)
    prefixes = _key_prefixes(sources) if _keys_collide(sources) else ("",) * len(sources)
    return PackPlan(sources, options, list(_split_into_shards(sources, options, growth)), growth, prefixes)


def trial_samples(sources: Sequence[PackSource]) -> Iterator[SampleSelection]:
    """A few samples spread over the sources."""
    cuttable = [source for source in sources if len(source.complete) and source.splittable]
    chosen = cuttable or [source for source in sources if len(source.complete)]
    for number in range(min(TRIAL_SAMPLES, len(chosen))):
        source = chosen[number * len(chosen) // min(TRIAL_SAMPLES, len(chosen))]
        each = -(-TRIAL_SAMPLES // min(TRIAL_SAMPLES, len(chosen)))
        picked = source.complete[:: max(1, len(source.complete) // each)][:each]
        yield source.select(picked.tolist())


def _check_casts(sources: Sequence[PackSource], options: PackOptions) -> None:
    """A cast of an array that none of the tried samples has is a slip of the pen, not a wish."""
    if not options.casts:
        return
    arrays: set[str] = set()
    for take in trial_samples(sources):
        for _, parts in read_samples(take):
            if not isinstance(parts, PenstockError):
                arrays.update(name for suffix, data in parts for name in array_names(suffix, data))
    for name, _ in options.casts:
        if arrays and name not in arrays:
            known = ", ".join(sorted(arrays))
            raise SettingError(f"no sample has an array {name!r} to cast", stage="pack", advice=f"There are: {known}")


def _size_ratio(sources: Sequence[PackSource], options: PackOptions) -> float:
    """How much larger or smaller samples become; bad samples among the tried are left to the tasks."""
    before = after = 0
    for take in trial_samples(sources):
        for _, parts in read_samples(take):
            if isinstance(parts, PenstockError):
                continue
            try:
                stored = convert_parts(parts, options)
            except PenstockError:  # whatever is wrong with it, its task will say so by name
                continue
            before += sum(_bytes_in_tar(len(data)) for _, data in parts)
            after += sum(_bytes_in_tar(len(data)) for _, data in stored)
    return after / before if before else 1.0


def _split_into_shards(sources: Sequence[PackSource], options: PackOptions, growth: float) -> Iterator[list[SampleRun]]:
    cuts: list[SampleRun] = []
    filled = 0.0
    for number, source in enumerate(sources):
        sizes = _sample_bytes(source.index)[source.complete] * growth
        first = 0
        if not source.splittable and len(sizes):
            cuts.append(SampleRun(number, 0, len(sizes)))
            filled += float(sizes.sum())
            first = len(sizes)
        for at, size in enumerate(sizes[first:].tolist(), start=first):
            filled += size
            if filled >= options.shard_bytes:
                yield [*cuts, SampleRun(number, first, at + 1)]
                cuts, filled, first = [], 0.0, at + 1
        if first < len(sizes):
            cuts.append(SampleRun(number, first, len(sizes)))
        if filled >= options.shard_bytes:
            yield cuts
            cuts, filled = [], 0.0
    if cuts:
        yield cuts


def _sample_bytes(index: ShardIndex) -> np.ndarray:
    """Each sample's bytes in a tar."""
    totals: np.ndarray = np.bincount(index.sample_ids, _bytes_in_tar(index.lengths), len(index)).astype(np.int64)
    return totals


def _bytes_in_tar(length: Length) -> Length:
    """With header and padding: small parts are mostly that."""
    return length + TAR_BLOCK + (-length % TAR_BLOCK)


def _keys_collide(sources: Sequence[PackSource]) -> bool:
    """Whether a key occurs in two sources, or two keys become one by the renaming of dots."""
    seen: set[int] = set()
    for source in sources:
        hashes = {hash(packed_key(source.index.keys[number])) for number in source.complete.tolist()}
        if len(hashes) < len(source.complete):
            raise SettingError(f"two keys in {source.path!r} would get the same name", advice="Rename one of them.")
        if seen & hashes:
            return True
        seen |= hashes
    return False


def _key_prefixes(sources: Sequence[PackSource]) -> tuple[str, ...]:
    """What tells equal keys apart: the shards' names, or their paths where two shards have the same name."""
    names = [os.path.basename(source.path).split(".", 1)[0] for source in sources]
    if len(set(names)) < len(names):
        paths = [os.path.abspath(source.path) for source in sources]
        names = [os.path.relpath(path, os.path.commonpath(paths)).replace(os.sep, "/") for path in paths]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingError(f"the shard {twice!r} is given twice", advice="Name each source once.")
    return tuple(name + "/" for name in names)


def _source_identity(path: str) -> str:
    """Which source that is, whatever folder we are in."""
    return path if is_remote(path) else os.path.realpath(path)


def _digest(*facts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32]
