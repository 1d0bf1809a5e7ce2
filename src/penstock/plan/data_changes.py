"""What could be changed about the data itself: prepared once, in fewer files, on a faster disk. With cost and gain.

Only where a rule names the cause. A gain is the model's: the run again with the part of a batch that would be shorter
made shorter. What had to be assumed for that stands in the reason of each change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isnan

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_bytes
from penstock.core.plan import Change
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.rules import all_rules
from penstock.diagnose.suspect import Suspect
from penstock.diagnose.verdict import GAIN_MAX, GAIN_MIN, STEPS_MIN, STRENGTH_MIN
from penstock.model.workload import Workload, gain
from penstock.plan.predict import thinned

CPU_CAUSES = ("decode_bound", "cpu_quota")
"""Causes that samples which are cheaper to make would cure."""
STORAGE_CAUSES = ("storage_bandwidth", "random_access", "reader_thrash", "latency_bound", "cache_miss")
"""Causes that a disk without them would cure."""
BYTES_WAITED = ("read", "open", "network")
"""States of a worker that waits for its data."""


@dataclass(frozen=True)
class DataCase:
    """A run with its causes, and the amounts that costs are made of."""

    evidence: Evidence
    workload: Workload
    causes: frozenset[str]

    @property
    def cpu(self) -> bool:
        """Whether making samples fills the cores."""
        return not self.causes.isdisjoint(CPU_CAUSES)

    @property
    def storage(self) -> bool:
        """Whether workers wait for bytes."""
        return not self.causes.isdisjoint(STORAGE_CAUSES)

    @property
    def read_share(self) -> float:
        """Of the workers' waiting, for data."""
        return self.evidence.workers.blocked_in(*BYTES_WAITED)

    @property
    def batch_bytes(self) -> float:
        """Read for a batch, on average; 0 where nobody could count."""
        return mean([fetch.read_bytes for fetch in self.evidence.workers.fetches])

    @property
    def bytes_s(self) -> float:
        """Read per second, by all workers."""
        return self.batch_bytes / self.evidence.loop.cycle_s if self.evidence.loop.cycle_s > 0 else 0.0

    @property
    def samples(self) -> float | None:
        """Of the dataset, or of an epoch; None where nobody knows."""
        loader, per_batch = self.evidence.loader, self.evidence.loop.samples_per_batch
        if loader.dataset_size is not None:
            return float(loader.dataset_size)
        return None if loader.batches is None or isnan(per_batch) else loader.batches * per_batch

    @property
    def size_bytes(self) -> float | None:
        """Of the data that an epoch reads; None where it is not known."""
        per_batch = self.evidence.loop.samples_per_batch
        if self.samples is None or isnan(per_batch) or not self.batch_bytes:
            return None
        return self.samples * self.batch_bytes / per_batch

    def seen_in(self, packages: frozenset[str]) -> float:
        """Share of the looks at workers that found them in these packages."""
        shares = self.evidence.workers.functions.items()
        return sum(share for function, share in shares if _package(function, packages))

    # -- what it takes ------------------------------------------------------------------------------------------

    def cost_of_packing(self) -> str:
        """Every sample is made once more, as fast as the run made them."""
        per_batch, cycle_s = self.evidence.loop.samples_per_batch, self.evidence.loop.cycle_s
        words = []
        if self.size_bytes is not None:
            words.append(f"up to {format_bytes(self.size_bytes)} written once")
        if self.samples is not None and not isnan(per_batch) and cycle_s > 0:
            rate = per_batch / cycle_s
            words.append(f"about {_hours(self.samples / rate)} at the measured {rate:,.0f} samples/s")
        return ", ".join(words) or "the data once more on disk; how much that is was not seen"

    def cost_of_copying(self) -> str:
        """Every byte is read once more, as fast as the run read them."""
        if self.size_bytes is None:
            return "the data once more on that disk; how much that is was not seen"
        took = _hours(self.size_bytes / self.bytes_s)
        return f"{format_bytes(self.size_bytes)} on that disk, {took} at the measured {self.bytes_s / 1e6:,.0f} MB/s"


def _package(function: str, packages: frozenset[str]) -> bool:
    """Whether `module:name` belongs to one of them."""
    module = function.partition(":")[0]
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _hours(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def causes(evidence: Evidence, *rules: str) -> dict[str, Suspect]:
    """Of these rules, those that suspect their cause as strongly as a finding must; none where steps are too few."""
    if len(evidence.loop.steps) < STEPS_MIN:
        return {}
    answers = {name: all_rules()[name](evidence) for name in rules}
    return {
        name: answer
        for name, answer in answers.items()
        if isinstance(answer, Suspect) and answer.strength >= STRENGTH_MIN
    }


def model_gain(workload: Workload, edit: Callable[[Workload], Workload]) -> float:
    """More samples per second of the edited run; a hundredfold at most, as in a diagnosis."""
    run = thinned(workload)
    return min(gain(run, edit(run)), GAIN_MAX)


SSD_BYTES_S = 2e9
"""What a local SSD is taken to read: ordinary virtual ones were measured at 1.6 to 2.9 GB/s."""
SSD_READS_S = 1e4
"""Scattered reads that it is taken to answer per second."""
QUARTER = 0.25
"""Of pixels, bytes and decoding, at half the side of a picture."""
ZSTD_TIME = 0.2
"""Of what deflate takes: 1.7 ms against 8.5 ms were measured for an array of 2 MB."""
LEAST_SEEN = 0.2
"""Share of the looks at workers from which on a library is part of the cause."""

_PICTURES = frozenset({"PIL", "cv2", "torchvision", "simplejpeg", "turbojpeg", "imageio", "skimage"})
_ARRAYS = frozenset({"zipfile", "zlib", "gzip", "numpy.lib"})


def data_changes(evidence: Evidence) -> tuple[Change, ...]:
    """The one with the largest gain first; those that no model speaks for last."""
    workload = evidence.workload
    if workload is None:
        return ()
    case = DataCase(evidence, workload, frozenset(causes(evidence, *CPU_CAUSES, *STORAGE_CAUSES, "small_files")))
    found = [*_cheaper(case), *_fewer_files(case), *_faster_disk(case)]
    worth = [change for change in found if change.gain is None or change.gain >= GAIN_MIN]
    return tuple(sorted(worth, key=lambda change: -1.0 if change.gain is None else change.gain, reverse=True))


# -- samples that are cheaper to make --------------------------------------------------------------------------------


def _cheaper(case: DataCase) -> Iterator[Change]:
    pictures, arrays = case.seen_in(_PICTURES), case.seen_in(_ARRAYS)
    if (case.cpu and pictures >= LEAST_SEEN) or ("storage_bandwidth" in case.causes and pictures > 0):
        yield _smaller_pictures(case, pictures)
    if case.cpu and arrays >= LEAST_SEEN:
        yield Change(
            scope="data",
            name="arrays",
            now="deflate (NPZ)",
            then="zstd, or raw where the storage can bear it",
            reason=f"The cores are full, and workers are in the unpacking of NPZ in {arrays:.0%} of the looks; assumes "
            f"that zstd takes {ZSTD_TIME:.0%} of deflate's time (`penstock shards pack --arrays auto` measures it)",
            gain=model_gain(case.workload, lambda run: run.with_(cpu_s=run.cpu_s * (1 - (1 - ZSTD_TIME) * arrays))),
            cost=case.cost_of_packing(),
        )
    if case.cpu and max(pictures, arrays) < LEAST_SEEN:
        most = model_gain(case.workload, lambda run: run.with_(cpu_s=run.cpu_s * 0))
        yield Change(
            scope="data",
            name="preparation",
            now="for every sample, in every epoch",
            then="once (`penstock shards pack`, or a script of your own)",
            reason="The cores are full of making samples, and it was not seen in which library: no model can say how "
            f"much of it could be done once. If all of it, {most:+.0%} samples/s",
            cost=case.cost_of_packing(),
        )


def _smaller_pictures(case: DataCase, seen: float) -> Change:
    """Fewer pixels take less computing, fewer bytes less waiting: what is the cause gets shorter."""
    computing = 1 - (1 - QUARTER) * seen if case.cpu else 1.0
    waiting = 1 - (1 - QUARTER) * case.read_share if case.storage else 1.0
    full = "The cores are full" if case.cpu else "The storage is full"
    return Change(
        scope="data",
        name="pictures",
        now="as they are",
        then="half the side (`penstock shards pack --image-size`)",
        reason=f"{full}, and workers are in picture libraries in {seen:.0%} of the looks; assumes that half the side "
        "will do for training, with a quarter of the pixels, of the bytes and of the time to decode",
        gain=model_gain(
            case.workload, lambda run: run.with_(cpu_s=run.cpu_s * computing, alone_s=run.alone_s * waiting)
        ),
        cost=case.cost_of_packing(),
    )


# -- fewer, larger files ---------------------------------------------------------------------------------------------


def _fewer_files(case: DataCase) -> Iterator[Change]:
    if "small_files" in case.causes:
        opening = case.evidence.workers.blocked_in("open")
        opens = sum(fetch.opens for fetch in case.evidence.workers.fetches)
        yield Change(
            scope="data",
            name="files",
            now=f"{opens / max(1, sum(fetch.samples for fetch in case.evidence.workers.fetches)):.1f} opened per sample",
            then="shards (`penstock shards pack`)",
            reason=f"{opening:.0%} of the workers' waiting is in opening files; assumes that shards are opened once",
            gain=model_gain(case.workload, lambda run: run.with_(alone_s=run.alone_s * (1 - opening))),
            cost=case.cost_of_packing(),
        )
    elif "random_access" in case.causes:
        yield _large_reads(case)


def _large_reads(case: DataCase) -> Change:
    """In a row instead of scattered: what that gives was measured after the run, or is not known."""
    looks = [line for line in case.evidence.recording.storage if line.loader == case.evidence.loader.loader]
    in_row = next((line.sequential_together for line in looks if line.cold and line.sequential_together > 0), None)
    reads = sum(fetch.reads for fetch in case.evidence.workers.fetches) / max(1, len(case.evidence.workers.fetches))
    reason = f"A batch takes {reads:.0f} small reads at scattered places"
    if in_row is not None and case.batch_bytes:
        reason += (
            f"; after the run the same storage gave {in_row / 1e6:,.0f} MB/s to readers of whole files, and it is "
            "assumed that shards are read like that"
        )
    else:
        reason += "; what the storage gives to reads in a row was not measured, so no gain can be said"
    return Change(
        scope="data",
        name="files",
        now="read at random",
        then="shards, read in blocks (`penstock shards pack`, penstock.Loader)",
        reason=reason,
        gain=None if in_row is None or not case.batch_bytes else _gain_at(case, case.batch_bytes / in_row),
        cost=case.cost_of_packing(),
    )


# -- a faster disk ---------------------------------------------------------------------------------------------------


def _faster_disk(case: DataCase) -> Iterator[Change]:
    """A cache on a local SSD; not where the storage is as fast already, or where workers wait for something else."""
    looked = bool(case.evidence.workers.states)
    if not case.storage or case.bytes_s > SSD_BYTES_S / 2 or (looked and case.read_share < LEAST_SEEN):
        return
    known = looked and case.batch_bytes > 0
    if known:
        why = (
            f"{case.read_share:.0%} of the workers' waiting is for data, which comes at "
            f"{case.bytes_s / 1e6:,.0f} MB/s; assumes a local SSD with {SSD_BYTES_S / 1e9:g} GB/s and "
            f"{SSD_READS_S:,.0f} scattered reads/s"
        )
    else:
        missing = "how many bytes were read" if looked else "in what the workers wait"
        why = f"Workers wait for data; {missing} was not seen, so no gain can be said"
    yield Change(
        scope="data",
        name="cache",
        now="read where it lies",
        then="copied to a local SSD",
        reason=why,
        gain=_gain_at(case, _on_ssd_s(case)) if known else None,
        cost=case.cost_of_copying(),
    )


def _on_ssd_s(case: DataCase) -> float:
    """Of a batch's bytes, with nobody else there."""
    reads = mean([fetch.reads for fetch in case.evidence.workers.fetches])
    seeking = reads / SSD_READS_S if "random_access" in case.causes else 0.0
    return max(case.batch_bytes / SSD_BYTES_S, seeking)


def _gain_at(case: DataCase, batch_s: float) -> float:
    """With the waiting for data gone, and so long instead for each batch at a storage that all share."""

    def edit(run: Workload) -> Workload:
        return run.with_(alone_s=run.alone_s * (1 - case.read_share), io_s=np.full(len(run), batch_s))

    return model_gain(case.workload, edit)
