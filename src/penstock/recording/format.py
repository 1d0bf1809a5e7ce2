"""The lines of a recording: one class for each kind of line.

Times named `at_s` are seconds since the run started, on one clock that all processes of the machine share. A value that
is not known is None or is left out of the line; a reader fills in the default. Fields may be added. A change of meaning
takes a new VERSION. Some attributes have another name in the file, which `msgspec.field(name=...)` gives.
"""

from __future__ import annotations

from typing import Any

import msgspec

VERSION = 1
PROFILED_PHASES = frozenset({"forward", "backward", "optimizer", "h2d", "sampler"})
"""Phases that only profiled steps have (`StepLine.profiled`). All other phases are recorded in every step."""


def is_profiled_phase(path: str) -> bool:
    """Return whether a phase, given as outer/inner, is recorded in profiled steps only."""
    return path.rpartition("/")[2] in PROFILED_PHASES


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of all kinds of lines. The JSON key `kind` holds the tag of the class."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU as its driver describes it."""

    name: str
    memory_bytes: int = 0


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cores, memory, GPUs and software versions of the machine."""

    cores: int = 1
    usable_cores: int = 1
    """Cores that the process may use, by CPU affinity and cgroup quota."""
    quota_cores: float | None = None
    """Cores that the cgroup's CPU quota allows; None without a quota."""
    memory_bytes: int = 0
    memory_limit_bytes: int | None = None
    """Memory limit of the cgroup; None if there is none, or none below the machine's memory."""
    shared_bytes: int | None = None
    """Size of /dev/shm, through which torch's workers deliver batches; None on systems without it."""
    platform: str = ""
    python: str = ""
    torch: str | None = None
    gpus: tuple[Gpu, ...] = ()


class RunLine(Line, frozen=True, kw_only=True, tag="run"):
    """The first line: what ran, when, as which rank and on which machine."""

    version: int = VERSION
    penstock: str = ""
    began_unix_s: float = 0.0
    """Start of the run, in seconds since 1970."""
    command: tuple[str, ...] = ()
    rank: int = 0
    world_size: int = 1
    pid: int = 0
    machine: Machine = Machine()
    probe: str = ""
    """Empty for a training run; "compute" for a probe, whose steps got one batch repeatedly and did not wait."""


class LoaderSetting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One setting of a loader as requested and as in force. If they differ, it was changed after the request."""

    requested: Any = None
    in_force: Any = None


class LoaderLine(Line, frozen=True, kw_only=True, tag="loader"):
    """A loader that the run iterates over, with its settings."""

    loader: int
    """Number of the loader in this run; other lines refer to it."""
    name: str = ""
    """Name of the loader in the script, such as train or val; empty if it is not known."""
    type: str = "iterable"
    """torch, penstock, iterable, function (each call gives a batch) or none (steps end with those of the optimizer)."""
    settings: dict[str, LoaderSetting] = {}
    """Settings by name: num_workers, prefetch_factor, pin_memory, persistent_workers, in_order, batch_size …"""
    dataset: str = ""
    """Qualified name of the dataset's class."""
    dataset_size: int | None = None
    """Samples of the dataset; None if it has no length."""
    batches: int | None = None
    """Batches of one epoch; None if the loader has no length."""


class EpochStartLine(Line, frozen=True, kw_only=True, tag="pass"):
    """The start of an epoch, that is of one iteration over a loader."""

    loader: int
    epoch: int = msgspec.field(name="number")
    """Index of the iteration over this loader, from 0."""
    at_s: float


class EpochEndLine(Line, frozen=True, kw_only=True, tag="pass_end"):
    """The end of an epoch."""

    loader: int
    epoch: int = msgspec.field(name="number")
    at_s: float
    how: str = "done"
    """done, left (the training loop stopped before the last batch) or raised."""


class StepLine(Line, frozen=True, kw_only=True, tag="step"):
    """One step: the wait for a batch and the work of the training loop on it."""

    loader: int
    epoch: int = msgspec.field(name="pass", default=0)
    batch: int
    """Index of the batch in the epoch, from 0."""
    at_s: float
    """When the training loop requested the batch."""
    wait_s: float
    """Seconds from the request to the batch: the time of the training loop inside the loader."""
    idle_s: float | None = None
    """Seconds of `wait_s` before a batch of any worker began to arrive; the rest is receiving batches."""
    step_s: float
    """Seconds from the batch to the request for the next one: the training loop's own work."""
    samples: int | None = None
    """Samples of the batch; None if it is not known."""
    phases: dict[str, float] = {}
    """Seconds by phase, on the host's clock. A phase inside another one is named outer/inner and counted in both.

    The hooks record these names: forward, backward, optimizer, h2d, sync (waiting for the GPU, as in `.item()`), gc,
    checkpoint, log, evaluation and sampler, which is a part of the wait.
    """
    profiled: bool = msgspec.field(name="looked", default=True)  # glossary: allow
    """Whether PROFILED_PHASES and `idle_s` were measured. If steps are short, only a sample of them is profiled; in the
    other steps these phases are not 0 but unknown.
    """
    device_phases: dict[str, float] = {}
    """Seconds by phase on the GPU's clock, if GPU events were recorded."""
    ready: int | None = None
    """Batches that had arrived when the batch was requested, including the batch itself."""
    outstanding: int | None = None
    """Tasks that workers had been given and the training loop had not taken; most of them may not have been started."""
    worker: int | None = None
    """The worker that made the batch."""


class FetchLine(Line, frozen=True, kw_only=True, tag="fetch"):
    """One batch as its worker made it. Worker -1 is the main process, for loaders without workers."""

    loader: int
    epoch: int = msgspec.field(name="pass", default=0)
    batch: int
    """Index of the batch in the epoch; -1 if it is not known."""
    worker: int
    at_s: float
    fetch_s: float
    """Seconds for the whole batch: all samples and collating."""
    collate_s: float = 0.0
    """Seconds of `fetch_s` in which samples were collated."""
    cpu_s: float = 0.0
    """CPU seconds of the worker's main thread, user and system."""
    queue_s: float = 0.0
    """Seconds in which that thread was runnable but waited for a core."""
    gc_s: float = 0.0
    """Seconds in full collections of the worker's garbage collector."""
    samples: int = 0
    slowest_s: float = 0.0
    """Seconds of the slowest sample."""
    read_bytes: int = 0
    """Bytes returned by read calls, whether from the page cache, a disk or the network."""
    device_bytes: int = 0
    """Bytes that came from a block device, not from the page cache."""
    reads: int = 0
    """Number of read calls."""
    opens: int = 0
    """Number of files opened."""


class StackSamplesLine(Line, frozen=True, kw_only=True, tag="where"):
    """Stack samples of one thread, counted by state and by function."""

    loader: int = -1
    worker: int | None = None
    """None: the main thread of the training process."""
    at_s: float
    samples: int = msgspec.field(name="looks")  # glossary: allow
    """Number of stack samples."""
    states: dict[str, int] = {}
    """Samples by the system call that the thread was in: running, read (file input), open (metadata), lock, sleep,
    network, write, other. Workers are sampled only while they make a batch, the main thread only outside the loader.
    """
    functions: dict[str, int] = {}
    """Samples by the innermost Python function, as module:function; the most frequent dozen."""


class StoreRequests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests of the process to object stores: sums since its start, without any address."""

    answers: int = 0
    """Answers to requests for a range of bytes."""
    bytes_read: int = 0
    answer_s: float = 0.0
    """Seconds from a request to the first byte of its answer, summed over all requests."""
    body_s: float = 0.0
    """Seconds from the first byte to the last one, summed likewise."""
    retries: int = 0


class HopsLine(Line, frozen=True, kw_only=True, tag="hops"):
    """The hops of a `penstock.Loader`: sums since its start."""

    loader: int
    at_s: float
    hops: dict[str, tuple[float, float, float]] = {}
    """Hop → (busy_s, starved_s, blocked_s)."""
    workers: int = 0
    readers: int = 0
    lookahead: int = msgspec.field(name="look_ahead", default=0)  # glossary: allow
    """Batches that the engine works on ahead of the training loop."""
    ready: int = 0
    """Batches that wait for the training loop."""
    bytes_read: int = 0
    store: StoreRequests | None = None
    """None if no object store was used. Several loaders of one process share these sums."""
    changes: tuple[str, ...] = ()
    """Changes that the autotuner made since the last such line."""
    gpu_times: tuple[float, float, float] | None = msgspec.field(name="card", default=None)  # glossary: allow
    """copying_s, exposed_s and stalled_s on the GPU's clock, sums since its start; None if batches stay on the host."""


class ProcessLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process of the run over the last second. Times are in seconds per second."""

    worker: int | None = None
    """None: the main process; -2: another process that the run started."""
    loader: int = -1
    cpu: float = 0.0
    """CPU time of all its threads."""
    thread_cpu: float | None = None
    """CPU time of its main thread, which makes the batches in a worker and trains in the main process."""
    queue: float = 0.0
    """Time in which that thread was runnable but waited for a core."""
    cores: int | None = None
    """Number of cores that it may run on."""
    memory_bytes: int = 0
    """PSS if the system reports it, else RSS."""


class DiskLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One block device over the last second."""

    name: str
    read_bytes_s: float = 0.0
    write_bytes_s: float = 0.0
    reads_s: float = 0.0
    """Reads per second."""
    busy: float = 0.0
    """Share of the time with at least one request in flight."""
    in_flight: float = 0.0
    """Mean number of requests in flight."""


class GpuLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one moment."""

    utilisation: float = 0.0
    """Share of the driver's last sampling interval in which a kernel ran."""
    memory_used_bytes: int = 0


class SystemLine(Line, frozen=True, kw_only=True, tag="system"):
    """The machine over the last second."""

    at_s: float
    seconds: float = 1.0
    """Actual length of the interval."""
    cpu: float = 0.0
    """Cores in use by all processes of the machine."""
    iowait: float = 0.0
    """Cores that were idle with a read or write outstanding."""
    steal: float = 0.0
    """Cores taken by the hypervisor."""
    load: float = 0.0
    """Load average of the last minute: tasks that are runnable or in uninterruptible sleep."""
    others_cpu: float = 0.0
    """Cores in use by processes that do not belong to this run."""
    processes: tuple[ProcessLoad, ...] = ()
    disks: tuple[DiskLoad, ...] = ()
    memory_free_bytes: int = 0
    memory_used_bytes: int = 0
    """Memory of all processes of the run."""
    swap_used_bytes: int = 0
    swapped_in_bytes_s: float = 0.0
    major_faults_s: float = 0.0
    """Page faults per second that waited for a disk."""
    throttled: float | None = None
    """Share of the time in which the cgroup's CPU quota throttled the run."""
    pressure: dict[str, float] = {}
    """Pressure stall information (PSI): cpu, io, memory → share of the interval in which some task waited for it."""
    network_bytes_s: float = 0.0
    """Bytes received and sent per second."""
    gpus: tuple[GpuLoad, ...] = ()


class StorageLine(Line, frozen=True, kw_only=True, tag="storage"):
    """Throughput of the storage under the workers' files, measured after the run with reads like theirs.

    The rates are bytes per second of all readers together. They decide what the times of the run cannot: whether reads
    share a device, each wait on their own, or slow each other down.
    """

    loader: int
    folder: str = ""
    readers: int
    """Readers in the measurements named together."""
    read_bytes: int
    """Bytes of one read."""
    sequential_alone: float = msgspec.field(name="in_row_alone")
    """One reader reads a file from its beginning to its end."""
    sequential_together: float = msgspec.field(name="in_row_together")
    """Each reader reads a file of its own from its beginning to its end."""
    random_alone: float = msgspec.field(name="scattered_alone")
    """One reader reads at random offsets."""
    random_together: float = msgspec.field(name="scattered_together")
    """All readers read at random offsets."""
    cold: bool = True
    """Whether the page cache was empty for all files."""


class EventLine(Line, frozen=True, kw_only=True, tag="event"):
    """A single event: gc, worker_started, files, probe, checkpoint, in_use (what the training uses already, such as
    autocast), raised or watcher_failed."""

    what: str
    at_s: float
    seconds: float = 0.0
    """Duration; 0 for an event without one."""
    loader: int | None = None
    worker: int | None = None
    detail: dict[str, Any] = {}


class EndLine(Line, frozen=True, kw_only=True, tag="end"):
    """The last line. It is missing if the run was killed."""

    at_s: float
    exit_code: int = 0
    how: str = "done"
    """done, raised or interrupted."""
    dropped: int = 0
    """Lines that were lost because writing failed or could not keep up."""


AnyLine = (
    RunLine
    | LoaderLine
    | EpochStartLine
    | EpochEndLine
    | StepLine
    | FetchLine
    | StackSamplesLine
    | HopsLine
    | SystemLine
    | StorageLine
    | EventLine
    | EndLine
)
