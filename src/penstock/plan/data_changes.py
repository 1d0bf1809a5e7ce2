"""Changes to the data itself: prepared once, in fewer files, or on a faster disk; each with its cost and its gain.

A change is proposed only where a rule names the cause. Its gain comes from the model: the run is repeated with that
part of a batch shortened that the change would shorten. The reason of each change states the assumptions made for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_bytes
from penstock.core.plan import Change
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.gains import GAIN_MIN, Gains
from penstock.diagnose.suspect import Remedy
from penstock.diagnose.verdict import LoaderDiagnosis
from penstock.model.workload import Workload

CPU_CAUSES = ("decode_bound", "cpu_quota")
"""Causes that are removed by samples which are cheaper to make."""
STORAGE_CAUSES = ("storage_bandwidth", "random_access", "reader_thrash", "latency_bound", "cache_miss")
"""Causes that are removed by a faster disk."""
DATA_STATES = ("read", "open", "network")
"""States of a worker that waits for its data."""
SSD_BYTES_S = 2e9
"""Assumed bandwidth of a local SSD: ordinary virtual ones were measured at 1.6 to 2.9 GB/s."""
SSD_READS_S = 1e4
"""Assumed scattered reads per second of a local SSD."""
HALF_SIDE = 0.25
"""Share of pixels, bytes and decoding time that is left if the side of an image is halved."""
ZSTD_TIME = 0.2
"""Time of zstd over the time of deflate: 1.7 ms against 8.5 ms were measured for an array of 2 MB."""
MIN_SHARE = 0.2
"""Share of the stack samples of workers from which on a library counts as part of the cause."""

_IMAGE_PACKAGES = frozenset({"PIL", "cv2", "torchvision", "simplejpeg", "turbojpeg", "imageio", "skimage"})
_NPZ_PACKAGES = frozenset({"zipfile", "zlib", "gzip", "numpy.lib"})


def data_changes(loader: LoaderDiagnosis) -> tuple[Change, ...]:
    """Return the changes to the data, sorted by gain; those without a gain come last."""
    if loader.evidence.workload is None:
        return ()
    run = DataUse(loader.evidence, loader.gains, frozenset(loader.suspects))
    found = [*_cheaper_samples(run), *_fewer_files(run), *_faster_disk(run)]
    worth = [change for change in found if change.gain is None or change.gain >= GAIN_MIN]
    return tuple(sorted(worth, key=lambda change: -1.0 if change.gain is None else change.gain, reverse=True))


@dataclass(frozen=True)
class DataUse:
    """How a run uses its data: the causes that limit it, and the amounts from which costs are computed."""

    evidence: Evidence
    gains: Gains
    causes: frozenset[str]
    """Names of the rules that suspect their cause strongly enough for a finding."""

    def gain(self, edit: Remedy) -> float:
        """Return the gain of an edit of the run."""
        return self.gains.of_edit(edit).gain

    @property
    def limited_by_cpu(self) -> bool:
        """Whether making samples fills the cores."""
        return not self.causes.isdisjoint(CPU_CAUSES)

    @property
    def limited_by_storage(self) -> bool:
        """Whether workers wait for bytes."""
        return not self.causes.isdisjoint(STORAGE_CAUSES)

    @property
    def read_share(self) -> float:
        """Share of the workers' waiting that is for data."""
        return self.evidence.workers.blocked_in(*DATA_STATES)

    @property
    def batch_bytes(self) -> float:
        """Mean bytes read for a batch; 0 where they could not be counted."""
        return mean([fetch.read_bytes for fetch in self.evidence.workers.fetches])

    @property
    def bytes_s(self) -> float:
        """Bytes per second that all workers read."""
        return self.batch_bytes / self.evidence.loop.cycle_s if self.evidence.loop.cycle_s > 0 else 0.0

    @property
    def samples(self) -> float | None:
        """Samples of the dataset, or of an epoch; None where neither is known."""
        loader, per_batch = self.evidence.loader, self.evidence.loop.samples_per_batch
        if loader.dataset_size is not None:
            return float(loader.dataset_size)
        return None if loader.batches is None or isnan(per_batch) else loader.batches * per_batch

    @property
    def size_bytes(self) -> float | None:
        """Bytes that an epoch reads; None where they are not known."""
        per_batch = self.evidence.loop.samples_per_batch
        if self.samples is None or isnan(per_batch) or not self.batch_bytes:
            return None
        return self.samples * self.batch_bytes / per_batch

    def share_in(self, packages: frozenset[str]) -> float:
        """Return the share of the stack samples of workers that were in these packages."""
        shares = self.evidence.workers.functions.items()
        return sum(share for function, share in shares if _belongs_to(function, packages))

    # -- costs -----------------------------------------------------------------------------------------------------

    def cost_of_packing(self) -> str:
        """Return the cost of making every sample once more, at the rate of the run."""
        per_batch, cycle_s = self.evidence.loop.samples_per_batch, self.evidence.loop.cycle_s
        parts = []
        if self.size_bytes is not None:
            parts.append(f"up to {format_bytes(self.size_bytes)} written once")
        if self.samples is not None and not isnan(per_batch) and cycle_s > 0:
            rate = per_batch / cycle_s
            parts.append(f"about {_hours(self.samples / rate)} at the measured {rate:,.0f} samples/s")
        return ", ".join(parts) or "the data once more on disk; its size was not recorded"

    def cost_of_copying(self) -> str:
        """Return the cost of reading every byte once more, at the rate of the run."""
        if self.size_bytes is None:
            return "the data once more on that disk; its size was not recorded"
        time = _hours(self.size_bytes / self.bytes_s)
        return f"{format_bytes(self.size_bytes)} on that disk, {time} at the measured {self.bytes_s / 1e6:,.0f} MB/s"


def _belongs_to(function: str, packages: frozenset[str]) -> bool:
    """Return whether `module:name` is in one of the packages."""
    module = function.partition(":")[0]
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _hours(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


# -- samples that are cheaper to make --------------------------------------------------------------------------------


def _cheaper_samples(run: DataUse) -> Iterator[Change]:
    images, arrays = run.share_in(_IMAGE_PACKAGES), run.share_in(_NPZ_PACKAGES)
    if (run.limited_by_cpu and images >= MIN_SHARE) or ("storage_bandwidth" in run.causes and images > 0):
        yield _smaller_images(run, images)
    if run.limited_by_cpu and arrays >= MIN_SHARE:
        left = 1 - (1 - ZSTD_TIME) * arrays
        yield Change(
            scope="data",
            name="arrays",
            now="deflate (NPZ)",
            then="zstd, or raw where the storage can bear it",
            reason=f"The cores are full, and workers unpack NPZ files in {arrays:.0%} of their stack samples; assumes "
            f"that zstd takes {ZSTD_TIME:.0%} of deflate's time (`penstock shards pack --arrays auto` measures it)",
            gain=run.gain(lambda workload: workload.replace(cpu_s=workload.cpu_s * left)),
            cost=run.cost_of_packing(),
        )
    if run.limited_by_cpu and max(images, arrays) < MIN_SHARE:
        most = run.gain(lambda workload: workload.replace(cpu_s=workload.cpu_s * 0))
        yield Change(
            scope="data",
            name="preparation",
            now="for every sample, in every epoch",
            then="once (`penstock shards pack`, or a script of your own)",
            reason="Making samples fills the cores, and the stack samples show no single library: no model can say how "
            f"much of it could be done once. If all of it, {most:+.0%} samples/s",
            cost=run.cost_of_packing(),
        )


def _smaller_images(run: DataUse, share: float) -> Change:
    """Propose fewer pixels, which take less computing and less reading: the part that is the cause gets shorter."""
    cpu_left = 1 - (1 - HALF_SIDE) * share if run.limited_by_cpu else 1.0
    wait_left = 1 - (1 - HALF_SIDE) * run.read_share if run.limited_by_storage else 1.0
    full = "The cores are full" if run.limited_by_cpu else "The storage is full"

    def edit(workload: Workload) -> Workload:
        return workload.replace(cpu_s=workload.cpu_s * cpu_left, latency_s=workload.latency_s * wait_left)

    return Change(
        scope="data",
        name="images",
        now="as they are",
        then="half the side (`penstock shards pack --image-size`)",
        reason=f"{full}, and workers are in image libraries in {share:.0%} of their stack samples; assumes that half "
        "the side is enough for training, with a quarter of the pixels, of the bytes and of the time to decode",
        gain=run.gain(edit),
        cost=run.cost_of_packing(),
    )


# -- fewer, larger files ---------------------------------------------------------------------------------------------


def _fewer_files(run: DataUse) -> Iterator[Change]:
    if "small_files" in run.causes:
        opening = run.evidence.workers.blocked_in("open")
        fetches = run.evidence.workers.fetches
        opens = sum(fetch.opens for fetch in fetches) / max(1, sum(fetch.samples for fetch in fetches))
        yield Change(
            scope="data",
            name="files",
            now=f"{opens:.1f} opened per sample",
            then="shards (`penstock shards pack`)",
            reason=f"{opening:.0%} of the workers' waiting is in opening files; assumes that shards are opened once",
            gain=run.gain(lambda workload: workload.replace(latency_s=workload.latency_s * (1 - opening))),
            cost=run.cost_of_packing(),
        )
    elif "random_access" in run.causes:
        yield _large_reads(run)


def _large_reads(run: DataUse) -> Change:
    """Propose sequential reads; the gain is known only if their rate was measured after the run."""
    measured = [line for line in run.evidence.recording.storage if line.loader == run.evidence.loader.loader]
    sequential = next(
        (line.sequential_together for line in measured if line.cold and line.sequential_together > 0), None
    )
    fetches = run.evidence.workers.fetches
    reads = sum(fetch.reads for fetch in fetches) / max(1, len(fetches))
    reason = f"A batch takes {reads:.0f} small reads at scattered positions"
    if sequential is not None and run.batch_bytes:
        reason += (
            f"; after the run the same storage gave {sequential / 1e6:,.0f} MB/s to readers of whole files, and shards "
            "are assumed to be read like that"
        )
    else:
        reason += "; the rate of sequential reads was not measured, so the gain is not known"
    return Change(
        scope="data",
        name="files",
        now="read at random",
        then="shards, read in blocks (`penstock shards pack`, penstock.Loader)",
        reason=reason,
        gain=None if sequential is None or not run.batch_bytes else _gain_on_storage(run, run.batch_bytes / sequential),
        cost=run.cost_of_packing(),
    )


# -- a faster disk ---------------------------------------------------------------------------------------------------


def _faster_disk(run: DataUse) -> Iterator[Change]:
    """Propose a local SSD, unless the storage is as fast already or the workers wait for something else."""
    has_states = bool(run.evidence.workers.states)
    waits_for_other = has_states and run.read_share < MIN_SHARE
    if not run.limited_by_storage or run.bytes_s > SSD_BYTES_S / 2 or waits_for_other:
        return
    known = has_states and run.batch_bytes > 0
    if known:
        reason = (
            f"{run.read_share:.0%} of the workers' waiting is for data, which comes at "
            f"{run.bytes_s / 1e6:,.0f} MB/s; assumes a local SSD with {SSD_BYTES_S / 1e9:g} GB/s and "
            f"{SSD_READS_S:,.0f} scattered reads/s"
        )
    else:
        missing = "the number of bytes read" if has_states else "the state in which workers wait"
        reason = f"Workers wait for data; {missing} was not recorded, so the gain is not known"
    yield Change(
        scope="data",
        name="cache",
        now="read from its present storage",
        then="copied to a local SSD",
        reason=reason,
        gain=_gain_on_storage(run, _batch_s_on_ssd(run)) if known else None,
        cost=run.cost_of_copying(),
    )


def _batch_s_on_ssd(run: DataUse) -> float:
    """Return the seconds to read a batch from an SSD that has no other readers."""
    reads = mean([fetch.reads for fetch in run.evidence.workers.fetches])
    scattered_s = reads / SSD_READS_S if "random_access" in run.causes else 0.0
    return max(run.batch_bytes / SSD_BYTES_S, scattered_s)


def _gain_on_storage(run: DataUse, batch_s: float) -> float:
    """Return the gain if the waiting for data is replaced by `batch_s` for each batch at a storage that all share."""

    def edit(workload: Workload) -> Workload:
        return workload.replace(
            latency_s=workload.latency_s * (1 - run.read_share), io_s=np.full(len(workload), batch_s)
        )

    return run.gain(edit)
