"""Decides which samples go into which output shard: a pure function of the sources and the options.

A second run, on this machine or another, therefore computes the same tasks, and executes only those that are missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError, SampleError, SettingError, ShardError
from penstock.shards.index import ShardIndex
from penstock.shards.pack.convert import array_names, convert_parts, packed_key
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.records.find import task_results
from penstock.shards.pack.records.reader import RecordReader
from penstock.shards.pack.sources import PackSource, ReadSample, SampleSelection, read_samples
from penstock.shards.pairing import canonical_suffix
from penstock.shards.tar_header import TAR_BLOCK
from penstock.shards.task_pool import run_tasks
from penstock.storage.object_store.url import is_remote

Length = TypeVar("Length", int, NDArray[np.int64])

TRIAL_SAMPLES = 8
"""Number of samples that are converted before planning, to measure how their sizes change. They are always the same
samples, so that the plan is always the same."""


@dataclass(frozen=True, slots=True)
class PackTask:
    """The work on one output shard. It is picklable and needs only the source files, so any process can run it."""

    name: str
    """File name of the output shard."""
    selections: tuple[SampleSelection, ...]
    options: PackOptions
    fingerprint: str
    """Digest of the options and the samples: an output with the same fingerprint need not be made again."""


@dataclass(frozen=True)
class SampleRun:
    """Consecutive complete samples of one source: `PackSource.complete[first:last]`."""

    source: int
    """Number of the source."""
    first: int
    last: int


@dataclass(frozen=True)
class PackPlan:
    """All tasks, as runs of sample numbers: the samples become objects only when their task is made."""

    sources: Sequence[PackSource]
    options: PackOptions
    shards: list[list[SampleRun]]
    """The samples of each output shard."""
    size_ratio: float
    """Bytes written per byte read, measured on the trial samples."""
    prefixes: tuple[str, ...]
    """A prefix for the keys of each source; empty unless two sources have a key in common."""

    @property
    def prefix_keys(self) -> bool:
        """Whether keys are prefixed with the name of their source."""
        return any(self.prefixes)

    @property
    def samples(self) -> int:
        """Number of samples that will be packed."""
        return sum(len(source.complete) for source in self.sources)

    @property
    def class_files(self) -> Mapping[str, tuple[str, ...]]:
        """The names of classes to store, by file name: the line of a name is its label."""
        return next((source.class_files for source in self.sources), {})

    @property
    def source_bytes(self) -> int:
        """Bytes that these samples take in the sources, with tar headers and padding."""
        return sum(int(_sample_bytes(source.index)[source.complete].sum()) for source in self.sources)

    def fingerprint(self) -> str:
        """Return a digest of everything that affects the output."""
        versions = [
            (_source_identity(source.path), asdict(source.index.binding), _reader_identity(source.reader))
            for source in self.sources
        ]
        runs = [[asdict(run) for run in shard] for shard in self.shards]
        return _digest(self.options.output_settings(), versions, runs, self.class_files)

    def tasks(self) -> Iterator[PackTask]:
        """Yield the tasks, each made when it is needed."""
        for number, shard in enumerate(self.shards):
            selections = tuple(self._select(run) for run in shard)
            bindings = [asdict(self.sources[run.source].index.binding) for run in shard]
            content = [
                (
                    _source_identity(selection.path),
                    selection.prefix,
                    _reader_identity(selection.reader),
                    selection.labels,
                    [(sample.key, [part.length for part in sample.parts]) for sample in selection.samples],
                )
                for selection in selections
            ]
            fingerprint = _digest(self.options.output_settings(), bindings, content)
            yield PackTask(self.name(number), selections, self.options, fingerprint)

    def name(self, number: int) -> str:
        """Return the file name of an output shard."""
        return f"{self.options.prefix}-{number:06d}.tar"

    def _select(self, run: SampleRun) -> SampleSelection:
        source = self.sources[run.source]
        return source.select(source.complete[run.first : run.last].tolist(), self.prefixes[run.source])


def make_plan(sources: Sequence[PackSource], options: PackOptions) -> PackPlan:
    """Divide the samples of the sources between output shards of about the requested size."""
    if not any(len(source.complete) for source in sources):
        raise ShardError("there is no complete sample to pack", stage="pack")
    samples = read_trial_samples(sources)
    _check_casts(samples, options)
    _check_masks(samples, sources, options)
    _check_classes(sources)
    size_ratio = _size_ratio(samples, options)
    prefixes = _key_prefixes(sources) if _keys_collide(sources) else ("",) * len(sources)
    return PackPlan(sources, options, list(_split_into_shards(sources, options, size_ratio)), size_ratio, prefixes)


def trial_samples(sources: Sequence[PackSource]) -> Iterator[SampleSelection]:
    """Yield a few samples, spread over the sources; of compressed shards only if there are no other sources."""
    splittable = [source for source in sources if len(source.complete) and source.splittable]
    candidates = splittable or [source for source in sources if len(source.complete)]
    count = min(TRIAL_SAMPLES, len(candidates))
    for number in range(count):
        source = candidates[number * len(candidates) // count]
        per_source = -(-TRIAL_SAMPLES // count)
        picked = source.complete[:: max(1, len(source.complete) // per_source)][:per_source]
        yield source.select(picked.tolist())


def read_trial_samples(sources: Sequence[PackSource]) -> list[ReadSample]:
    """Return the trial samples; those of records are read by a worker, which a damaged file may kill."""
    selections = tuple(trial_samples(sources))
    if all(selection.reader is None for selection in selections):
        return _read_all(selections)
    ((_, samples),) = task_results(run_tasks(_read_all, [selections], 1), selections[0].path)
    return samples


def _read_all(selections: Iterable[SampleSelection]) -> list[ReadSample]:
    return [read for selection in selections for read in read_samples(selection)]


def _check_masks(samples: Sequence[ReadSample], sources: Sequence[PackSource], options: PackOptions) -> None:
    """Raise if no sample has a part with the suffix of a declared mask, which is then probably misspelt."""
    known = {suffix for source in sources if source.reader is None for suffix in source.index.suffixes}
    known |= {suffix for _, parts in samples if isinstance(parts, list) for suffix, _ in parts}
    for mask in options.masks:
        if known and canonical_suffix(mask) not in map(canonical_suffix, known):
            advice = f"There are: {', '.join(sorted(known))}"
            raise SettingError(f"no sample has a mask {mask!r}", stage="pack", advice=advice)


def _check_casts(samples: Sequence[ReadSample], options: PackOptions) -> None:
    """Raise if a cast names an array that no trial sample has, since its name is then probably misspelt."""
    arrays: set[str] = set()
    for _, parts in samples if options.casts else ():
        if isinstance(parts, list):
            arrays.update(name for suffix, data in parts for name in array_names(suffix, data))
    for name, _ in options.casts:
        if arrays and name not in arrays:
            known = ", ".join(sorted(arrays))
            raise SettingError(f"no sample has an array {name!r} to cast", stage="pack", advice=f"There are: {known}")


def _size_ratio(samples: Sequence[ReadSample], options: PackOptions) -> float:
    """Return the bytes after conversion per byte in the index, over the trial samples that are not bad."""
    before = after = 0
    for sample, parts in samples:
        if isinstance(parts, PenstockError):
            continue
        try:
            stored = convert_parts(parts, options)
        except SampleError:  # the task of this sample will report the error with the sample's name
            continue
        except SettingError as error:
            error.member = sample.key + (error.member or "")
            raise
        before += sum(_bytes_in_tar(part.length) for part in sample.parts)
        after += sum(_bytes_in_tar(len(data)) for _, data in stored)
    return after / before if before else 1.0


def _split_into_shards(
    sources: Sequence[PackSource], options: PackOptions, size_ratio: float
) -> Iterator[list[SampleRun]]:
    """Yield the runs of each output shard; a source that cannot be split goes into one shard whole."""
    runs: list[SampleRun] = []
    filled = 0.0
    for number, source in enumerate(sources):
        sizes = _sample_bytes(source.index)[source.complete] * size_ratio
        first = 0
        if not source.splittable and len(sizes):
            runs.append(SampleRun(number, 0, len(sizes)))
            filled += float(sizes.sum())
            first = len(sizes)
        for position, size in enumerate(sizes[first:].tolist(), start=first):
            filled += size
            if filled >= options.shard_bytes:
                yield [*runs, SampleRun(number, first, position + 1)]
                runs, filled, first = [], 0.0, position + 1
        if first < len(sizes):
            runs.append(SampleRun(number, first, len(sizes)))
        if filled >= options.shard_bytes:
            yield runs
            runs, filled = [], 0.0
    if runs:
        yield runs


def _sample_bytes(index: ShardIndex) -> np.ndarray:
    """Return the bytes that each sample takes in a tar."""
    totals: np.ndarray = np.bincount(index.sample_ids, _bytes_in_tar(index.lengths), len(index)).astype(np.int64)
    return totals


def _bytes_in_tar(length: Length) -> Length:
    """Return the bytes of a part with its header and padding, which are most of a small part."""
    return length + TAR_BLOCK + (-length % TAR_BLOCK)


def _keys_collide(sources: Sequence[PackSource]) -> bool:
    """Return whether two sources have a key in common; raise if two keys of one source get the same packed key."""
    earlier_hashes: set[int] = set()
    for source in sources:
        hashes = {hash(packed_key(source.index.keys[number])) for number in source.complete.tolist()}
        if len(hashes) < len(source.complete):
            raise SettingError(f"two keys in {source.path!r} would get the same name", advice="Rename one of them.")
        if earlier_hashes & hashes:
            return True
        earlier_hashes |= hashes
    return False


def _key_prefixes(sources: Sequence[PackSource]) -> tuple[str, ...]:
    """Return a distinct prefix for each source: the shard's name, or its path if two shards have the same name."""
    names = [os.path.basename(source.path).split(".", 1)[0] for source in sources]
    if len(set(names)) < len(names):
        paths = [os.path.abspath(source.path) for source in sources]
        names = [os.path.relpath(path, os.path.commonpath(paths)).replace(os.sep, "/") for path in paths]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise SettingError(f"the shard {repeated!r} is given twice", advice="Name each source once.")
    return tuple(name + "/" for name in names)


def _check_classes(sources: Sequence[PackSource]) -> None:
    """Raise if a class has a name that cannot be a line of a file."""
    for source in sources[:1]:
        for names in source.class_files.values():
            odd = next((name for name in names if name != name.strip() or not name.isprintable()), None)
            if odd is not None:
                advice = "Rename the class: its name becomes a line of a file."
                raise SettingError(f"a class has the name {odd!r}", shard=source.path, stage="pack", advice=advice)


def _reader_identity(reader: RecordReader | None) -> object:
    """Return everything that affects how records become samples."""
    return None if reader is None else (type(reader).__name__, asdict(reader))


def _source_identity(path: str) -> str:
    """Return a path that does not depend on the working directory."""
    return path if is_remote(path) else os.path.realpath(path)


def _digest(*facts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32]
