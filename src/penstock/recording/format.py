"""What a recording is made of: one class per kind of line.

Times (`at_s`) are seconds since the run began, on one clock for all processes of the machine. What is not known is None
or left out; a reader fills in the default. Fields may be added; a change of meaning takes a new VERSION.
"""

from __future__ import annotations

from typing import Any

import msgspec

VERSION = 1
PROFILED_PHASES = frozenset({"forward", "backward", "optimizer", "h2d", "sampler"})
"""Phases that only steps with `profiled` have. Whatever else there is of phases is seen in every step."""


def is_profiled_phase(path: str) -> bool:
    """Whether a phase is known only of steps that were looked at."""
    return path.rpartition("/")[2] in PROFILED_PHASES


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Root of all kinds."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accelerator as its driver describes it."""

    name: str
    memory_bytes: int = 0


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the run had to work with."""

    cores: int = 1
    usable_cores: int = 1
    """By affinity and cgroup quota."""
    quota_cores: float | None = None
    """What the cgroup's quota allows, if it sets one."""
    memory_bytes: int = 0
    memory_limit_bytes: int | None = None
    shared_bytes: int | None = None
    """What /dev/shm holds, through which torch's workers deliver; None where there is none."""
    platform: str = ""
    python: str = ""
    torch: str | None = None
    gpus: tuple[Gpu, ...] = ()


class RunLine(Line, frozen=True, kw_only=True, tag="run"):
    """The first line."""

    version: int = VERSION
    penstock: str = ""
    began_unix_s: float = 0.0
    command: tuple[str, ...] = ()
    rank: int = 0
    world_size: int = 1
    pid: int = 0
    machine: Machine = Machine()
    probe: str = ""
    """compute: its steps were given one batch over and over, and say nothing about data. Empty: a run."""


class LoaderSetting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As requested and as in force: where they differ, somebody clamped it on the way."""

    requested: Any = None
    in_force: Any = None


class LoaderLine(Line, frozen=True, kw_only=True, tag="loader"):
    """A loader the run iterates over."""

    loader: int
    """Its number in this run, by which other lines refer to it."""
    name: str = ""
    """What the script calls it, as far as it can be told: train, val."""
    type: str = "iterable"
    """torch, penstock or iterable."""
    settings: dict[str, LoaderSetting] = {}
    """num_workers, prefetch_factor, pin_memory, persistent_workers, in_order, multiprocessing_context, batch_size …"""
    dataset: str = ""
    """Its class."""
    dataset_size: int | None = None
    batches: int | None = None
    """Per pass."""


class EpochStartLine(Line, frozen=True, kw_only=True, tag="pass"):
    """One iteration over a loader begins: an epoch, usually."""

    loader: int
    epoch: int = msgspec.field(name="number")
    at_s: float


class EpochEndLine(Line, frozen=True, kw_only=True, tag="pass_end"):
    """It ends: "done", "left" (break) or "raised"."""

    loader: int
    epoch: int = msgspec.field(name="number")
    at_s: float
    how: str = "done"


class StepLine(Line, frozen=True, kw_only=True, tag="step"):
    """One batch and what the training loop did with it."""

    loader: int
    epoch: int = msgspec.field(name="pass", default=0)
    batch: int
    """Its number in the pass, from 0."""
    at_s: float
    """When the loop asked for it."""
    wait_s: float
    """Until it came: the loop's time in the loader."""
    idle_s: float | None = None
    """Of it, until a worker's batch began to arrive, whoever's it was; the rest is taking batches over."""
    step_s: float
    """From then until the loop asked for the next: the loop's own time."""
    samples: int | None = None
    phases: dict[str, float] = {}
    """Seconds by name, on the host's clock. A phase inside another is named outer/inner and counted in both.

    Names we give ourselves: forward, backward, optimizer, h2d, sync (waiting for the device: .item() and its kin),
    gc, sampler (inside the wait), checkpoint, log.
    """
    profiled: bool = msgspec.field(name="looked", default=True)
    """Whether the phases in PROFILED_PHASES were looked at, and `idle_s`. Where steps are short only some are: in the others
    such a phase is not 0 but not known.
    """
    device_phases: dict[str, float] = {}
    """The same on the device's clock, where events were read."""
    ready: int | None = None
    """Batches that had arrived when the loop asked, this one included."""
    outstanding: int | None = None
    """Tasks given to workers and not yet taken by the loop; most of them may not have been started."""
    worker: int | None = None
    """Whose batch it was."""


class FetchLine(Line, frozen=True, kw_only=True, tag="fetch"):
    """One batch as its worker made it (worker -1: the main process, when there are no workers)."""

    loader: int
    epoch: int = msgspec.field(name="pass", default=0)
    batch: int
    worker: int
    at_s: float
    fetch_s: float
    """All of it: samples, collate."""
    collate_s: float = 0.0
    cpu_s: float = 0.0
    """Of the worker's thread, user and system."""
    queue_s: float = 0.0
    """Runnable, but waiting for a core."""
    gc_s: float = 0.0
    """In full collections of the worker's garbage collector."""
    samples: int = 0
    slowest_s: float = 0.0
    """The slowest sample."""
    read_bytes: int = 0
    """Through read calls, from whatever lies beneath."""
    device_bytes: int = 0
    """Of them, from a block device: not from the page cache."""
    reads: int = 0
    """Read calls."""
    opens: int = 0
    """Files opened."""


class StackSamplesLine(Line, frozen=True, kw_only=True, tag="where"):
    """Where a thread was, looked at some times a second: counts by state and by function."""

    loader: int = -1
    worker: int | None = None
    """None: the main thread."""
    at_s: float
    samples: int = msgspec.field(name="looks")
    states: dict[str, int] = {}
    """running, read (file input), open (metadata), lock, sleep, network, write, other: by the system call it is in.

    For workers only while they make a batch; for the main thread only outside the loader.
    """
    functions: dict[str, int] = {}
    """Innermost functions of Python, module:function; the most frequent dozen."""


class StoreRequests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process asked of object stores, sums since its start. Nothing of where they are."""

    answers: int = 0
    """To requests for a range of bytes."""
    bytes_read: int = 0
    answer_s: float = 0.0
    """From asking until the answer began to come, of all of them."""
    body_s: float = 0.0
    """From then until its last byte."""
    retries: int = 0


class HopsLine(Line, frozen=True, kw_only=True, tag="hops"):
    """A penstock.Loader's hops, sums since its start: name → (busy_s, starved_s, blocked_s)."""

    loader: int
    at_s: float
    hops: dict[str, tuple[float, float, float]] = {}
    workers: int = 0
    readers: int = 0
    lookahead: int = msgspec.field(name="look_ahead", default=0)
    ready: int = 0
    bytes_read: int = 0
    store: StoreRequests | None = None
    """None where no store was asked. Several loaders of a process share it."""
    changes: tuple[str, ...] = ()
    """New since the last such line."""
    gpu_times: tuple[float, float, float] | None = msgspec.field(name="card", default=None)
    """By a GPU's own clock, sums since its start: copying_s, exposed_s, stalled_s. None where batches stay here."""


class ProcessLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process of the run over the last second, in seconds per second."""

    worker: int | None = None
    """None: the main process; -2: others that the run started."""
    loader: int = -1
    cpu: float = 0.0
    """Of all its threads."""
    thread_cpu: float | None = None
    """Of its main thread, which makes batches in a worker and trains in the main process."""
    queue: float = 0.0
    """Of that thread: runnable without a core."""
    cores: int | None = None
    """That it may run on."""
    memory_bytes: int = 0
    """PSS where the system tells, else RSS."""


class DiskLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One block device over the last second."""

    name: str
    read_bytes_s: float = 0.0
    write_bytes_s: float = 0.0
    reads_s: float = 0.0
    busy: float = 0.0
    """Share of the time with at least one request in flight."""
    in_flight: float = 0.0
    """Mean number of requests."""


class GpuLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accelerator at one moment."""

    utilisation: float = 0.0
    memory_used_bytes: int = 0


class SystemLine(Line, frozen=True, kw_only=True, tag="system"):
    """The machine over the last second."""

    at_s: float
    seconds: float = 1.0
    """The window, really."""
    cpu: float = 0.0
    """Cores in use, by all processes of the machine."""
    iowait: float = 0.0
    """Cores idle with a read or write outstanding."""
    steal: float = 0.0
    """Cores' worth taken by the hypervisor."""
    load: float = 0.0
    """Runnable or in uninterruptible sleep, the last minute's mean."""
    others_cpu: float = 0.0
    """Cores in use by processes that are not of this run."""
    processes: tuple[ProcessLoad, ...] = ()
    disks: tuple[DiskLoad, ...] = ()
    memory_free_bytes: int = 0
    memory_used_bytes: int = 0
    """By the run: all its processes."""
    swap_used_bytes: int = 0
    swapped_in_bytes_s: float = 0.0
    major_faults_s: float = 0.0
    throttled: float | None = None
    """Share of the time in which the cgroup's quota held us back."""
    pressure: dict[str, float] = {}
    """PSI: cpu, io, memory → share of the window in which some task waited for it."""
    network_bytes_s: float = 0.0
    gpus: tuple[GpuLoad, ...] = ()


class StorageLine(Line, frozen=True, kw_only=True, tag="storage"):
    """What the storage under the workers' files gave after the run, read as they read: one reader, then all together.

    Bytes per second in all. It decides what the run's own times cannot: whether reads share a device, wait each on
    its own, or get in each other's way.
    """

    loader: int
    folder: str = ""
    readers: int
    read_bytes: int
    """Of one read."""
    sequential_alone: float = msgspec.field(name="in_row_alone")
    """Each reader its own file from beginning to end."""
    sequential_together: float = msgspec.field(name="in_row_together")
    random_alone: float = msgspec.field(name="scattered_alone")
    """At random places."""
    random_together: float = msgspec.field(name="scattered_together")
    cold: bool = True
    """Whether the page cache was kept out of it."""


class EventLine(Line, frozen=True, kw_only=True, tag="event"):
    """Something that happened once: gc, worker_started, files, probe, checkpoint, raised, watcher_failed."""

    what: str
    at_s: float
    seconds: float = 0.0
    loader: int | None = None
    worker: int | None = None
    detail: dict[str, Any] = {}


class EndLine(Line, frozen=True, kw_only=True, tag="end"):
    """The last line of a run that was not killed."""

    at_s: float
    exit_code: int = 0
    how: str = "done"
    """done, raised, interrupted."""
    dropped: int = 0
    """Lines that were lost because writing could not keep up or failed."""


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
