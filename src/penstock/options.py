"""The settings of a `penstock.Loader`: groups of related options, and `LoaderOptions`, which holds all of them.

Every group is a frozen dataclass that checks its values when it is created. Where a default is None, Penstock chooses
the value and may change it while it runs; a value that the user sets is kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any, Literal

from penstock.errors import SettingError

Executor = Literal["auto", "process", "thread"]
ErrorPolicy = Literal["raise", "skip", "replace"]

BLOCK_BYTES = 2 << 20
"""Default size of a block: a disk streams and a request to an object store pays off, and 64 blocks fit in memory."""
LANES = 64
"""Default number of lanes, or as many more as the ranks can share evenly. With blocks of 2 MiB, 128 MiB are in use."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of a URL; one letter before the colon is a Windows drive."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How shards are read, and in which units: `Loader(…, reading=ReadOptions(num_readers=16))`.

    They apply to shards only: a map-style dataset reads its samples itself, in the workers.
    """

    num_readers: int | None = None
    """Reads in flight at a time. None: 4 at first, 16 where shards lie in an object store, then 1 to 32, as many as the
    storage makes use of. Set it where the storage must be spared or the right number is known."""
    page_cache: bool | None = None
    """Whether shards are read through the kernel's page cache. None: yes if the shards take less than half of the free
    memory. Set False to leave the page cache to others, True if the shards will be read again soon."""
    lanes: int | None = None
    """Sequences of blocks from which batches take samples in turn. None: 64, or the next larger multiple of the number
    of ranks. With a number that is not such a multiple, some blocks are read by several ranks. More lanes mix more
    places of the dataset in a batch and hold more blocks in memory. Another number is another order."""
    block_bytes: int = BLOCK_BYTES
    """Bytes of samples that are read together, and shuffled among themselves. Smaller blocks shuffle better, larger
    ones read faster from disks and object stores. Another size is another order."""

    def __post_init__(self) -> None:
        for name in ("num_readers", "lanes", "block_bytes"):
            check_count(name, getattr(self, name))

    def changed(self) -> list[str]:
        """Return the names of the options that differ from their defaults."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """A folder on a fast local disk that keeps copies of shards: `Loader(…, cache=CacheOptions("/nvme", 2 << 40))`.

    Shards are copied in the background while they are read from where they lie. Later epochs, other ranks of the
    machine and later runs read the copies.
    """

    folder: str
    """The folder for the copies. It is created, and may be shared by loaders, ranks and jobs."""
    max_bytes: int | None = None
    """Bytes that the folder may hold in all, whichever job wrote them. None: four fifths of the free space on its disk.
    Where not all shards fit, the first ones of the list are kept."""

    def __post_init__(self) -> None:
        if not self.folder or _URL.match(self.folder):
            raise SettingError(f"the cache {self.folder!r} is not a folder", advice="Name one on a fast local disk")
        check_count("max_bytes", self.max_bytes)


@dataclass(frozen=True, slots=True)
class ErrorOptions:
    """The policy for bad samples: `Loader(…, errors=ErrorOptions("skip", max_bad_fraction=0.05))`."""

    on_error: ErrorPolicy = "raise"
    """"raise" ends the epoch with the error. "skip" leaves the sample out, so that its batch is smaller. "replace" puts
    the next good sample of the batch in its place."""
    max_bad_fraction: float = 0.01
    """The fraction of bad samples, 0 to 1, above which "skip" and "replace" end the epoch too: then something larger is
    wrong. Raise it for data that is known to be damaged."""
    bad_samples_path: str | None = None
    """A file to which every bad sample is appended as a line of JSON, with its shard, member, offset and the reason."""

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip", "replace"):
            raise SettingError(f"on_error {self.on_error!r} is not known", advice="Use raise, skip or replace")
        if not 0 <= self.max_bad_fraction <= 1:
            raise SettingError(f"max_bad_fraction={self.max_bad_fraction} is not between 0 and 1")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the work is run: `Loader(…, engine=EngineOptions(memory_bytes=8 << 30))`."""

    executor: Executor = "auto"
    """Whether workers are processes ("process") or threads ("thread"). "auto": processes, but threads on Windows, on a
    Python without GIL, and on one core if no function of the user runs in the workers. Threads suit notebooks and small
    datasets, since they start at once, but they cannot seed the global random generators for each sample."""
    memory_bytes: int | None = None
    """Bytes for arena, slabs and worker processes together. None: a quarter of the free memory, divided among the ranks
    of the machine. More memory lets more batches be made ahead."""
    timeout_s: float = 120.0
    """Seconds after which a sample counts as stuck: the stack of its worker is printed and the worker is replaced.
    Raise it for samples that take minutes to decode."""
    worker_affinity: bool = False
    """Whether each worker process is bound to one core, those near the memory of this process first. It helps on
    machines with several memory nodes that run nothing else."""
    static_buffers: bool = False
    """Whether every batch is delivered in the same tensors, as CUDA graphs need it. A batch is then overwritten when
    the next one is requested."""

    def __post_init__(self) -> None:
        if self.executor not in ("auto", "process", "thread"):
            raise SettingError(f"executor {self.executor!r} is not known", advice="Use auto, process or thread")
        check_count("memory_bytes", self.memory_bytes)
        if not self.timeout_s > 0:  # this form refuses NaN too
            raise SettingError(f"timeout_s={self.timeout_s} is not above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """All settings of one loader as they are in force, with shorthands resolved. `Loader` documents each of them."""

    batch_size: int | None
    """None where a batch_sampler decides."""
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    max_samples: int | None = None
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    transform: Callable[..., Any] | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict)
    filter: Callable[[Any], bool] | None = None
    device: str = "cpu"
    num_workers: int | None = None
    """At least 1: `in_process` has replaced 0."""
    rank: int | None = None
    world_size: int | None = None
    reading: ReadOptions = field(default_factory=ReadOptions)
    cache: CacheOptions | None = None
    errors: ErrorOptions = field(default_factory=ErrorOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("num_workers", self.num_workers)
        if self.engine.static_buffers and self.device == "numpy":
            raise SettingError(
                "static_buffers needs tensors, and device='numpy' delivers arrays", advice='Use device="cpu" or "cuda"'
            )

    @property
    def has_user_order(self) -> bool:
        """Whether a sampler of the user decides the order, which then already is that of this rank."""
        return self.sampler is not None or self.batch_sampler is not None


def default_lanes(world_size: int) -> int:
    """Return the smallest number of lanes from LANES on that so many ranks can share evenly."""
    return world_size * -(-LANES // world_size)


# -- shorthands, and the names that users of torch's DataLoader know --------------------------------------------------


def split_samplers(sampler: Any, batch_sampler: Any) -> tuple[Any, Any]:
    """Return (sampler, batch_sampler); a sampler that gives whole batches, as in penstock.train, is a batch sampler."""
    if batch_sampler is None and hasattr(sampler, "batch_size") and hasattr(sampler, "drop_last"):
        return None, sampler
    return sampler, batch_sampler


def cache_options(cache: str | os.PathLike[str] | CacheOptions | None) -> CacheOptions | None:
    """Return the options of a cache that may be given as its folder alone."""
    return CacheOptions(os.fspath(cache)) if isinstance(cache, str | os.PathLike) else cache


def error_options(on_error: ErrorPolicy | None, errors: ErrorOptions | None) -> ErrorOptions:
    """Return the options that `on_error`, a shorthand, or `errors` stands for."""
    if on_error is None:
        return errors or ErrorOptions()
    if errors is not None:
        raise SettingError("on_error is given beside errors", advice=f"Write errors=ErrorOptions({on_error!r}, …)")
    return ErrorOptions(on_error)


def in_process(num_workers: int | None, engine: EngineOptions) -> tuple[int | None, EngineOptions]:
    """Return the number of workers and the engine's options; `num_workers=0` means one thread of this process."""
    check_count("num_workers", num_workers, least=0)
    if num_workers != 0:
        return num_workers, engine
    if engine.executor == "process":
        raise SettingError("num_workers: 0 means no worker processes, but executor is 'process'")
    return 1, replace(engine, executor="thread")


def check_torch_settings(
    device: str, prefetch_factor: int | None, pin_memory: bool | None, persistent_workers: bool | None
) -> None:
    """Refuse settings of torch's DataLoader that cannot be met here, with the reason; None means not given."""
    if prefetch_factor is not None:
        raise SettingError(
            "prefetch_factor: prefetching is not counted in batches per worker; as many batches are made ahead as "
            "memory_bytes has space for",
            advice="Leave it out, or set engine=EngineOptions(memory_bytes=…)",
        )
    if pin_memory is not None and pin_memory != device.startswith("cuda"):
        raise SettingError(
            f"pin_memory: memory is pinned if batches go to a GPU, and only then; device is {device!r}",
            advice="Set device='cuda', and batches are delivered there" if pin_memory else "Leave it out",
        )
    if persistent_workers is not None and not persistent_workers:
        raise SettingError(
            "persistent_workers: workers always live from epoch to epoch", advice="Leave it out; close() ends them"
        )


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is neither None nor a whole number from `least` on; a bool is refused, numpy's integers are not."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingError(f"{name}={value!r} is not a whole number")
    if value < least:
        raise SettingError(f"{name}={value} is below {least}" if least < 1 else f"{name}={value} is not above 0")
