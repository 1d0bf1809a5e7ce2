"""Slows a training from outside, by mounts, kernel limits, other processes and signals, each a context around a run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
HERE = "benchmarks.faults_independent"


@dataclass
class Surroundings:
    """The parts of a run that a means may change."""

    plain: Path
    """The folder of the data."""
    data: Path
    """The folder that the script gets as {data}; a slow mount replaces it."""
    host: str = ""
    """The server that the script gets as {host}."""
    groups: list[Path] = field(default_factory=list)
    """The cgroups that the run starts in."""
    pid: int | None = None
    """The process of `penstock run`, once it is started."""


class Means:
    """A context around a run; the base class changes nothing."""

    def missing(self) -> str | None:
        """Return why this cannot be done on this machine, or None."""
        return None

    @contextmanager
    def around(self, run: Surroundings) -> Iterator[None]:
        yield


@contextmanager
def _program(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class SlowMount(Means):
    """A FUSE mount of the data folder with delays."""

    open_ms: float = 0
    read_ms: float = 0
    mbps: float = 0
    after_s: float = 0

    def missing(self) -> str | None:
        if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
            return "a FUSE mount needs root and /dev/fuse"
        try:
            import mfusepy  # noqa: F401
        except (ImportError, OSError) as error:
            return f"mfusepy does not work here: {error}"
        return None

    @contextmanager
    def around(self, run: Surroundings) -> Iterator[None]:
        target = tempfile.mkdtemp(prefix="penstock-slow-mount-")
        numbers = ("--open-ms", self.open_ms, "--read-ms", self.read_ms, "--mbps", self.mbps, "--after-s", self.after_s)
        command = (sys.executable, "-m", f"{HERE}.slow_mount", str(run.plain), target, *map(str, numbers))
        with _program(*command):
            try:
                _wait_until(lambda: os.path.ismount(target), "the FUSE mount")
                run.data = Path(target)
                yield
            finally:
                subprocess.run(["umount", "-l", target], check=False)
        with suppress(OSError):
            os.rmdir(target)


@dataclass(frozen=True)
class Group(Means):
    """A cgroup (version 1) with limits, for the whole run."""

    controller: str
    limits: tuple[tuple[str, str], ...]
    """The files of the group and their values; {disk} is the number of the disk under the data."""

    def missing(self) -> str | None:
        root = CGROUPS / self.controller
        if not os.access(root / "cgroup.procs", os.W_OK):
            return f"no cgroup v1 controller {self.controller} that this user may write to"
        return None

    @contextmanager
    def around(self, run: Surroundings) -> Iterator[None]:
        group = CGROUPS / self.controller / f"penstock-independent-{os.getpid()}"
        group.mkdir()
        try:
            for name, value in self.limits:
                (group / name).write_text(value.format(disk=_disk(run.plain)))
            run.groups.append(group)
            yield
        finally:
            run.groups.remove(group)
            _wait_until(lambda: not (group / "cgroup.procs").read_text(), "the processes of the cgroup to end")
            group.rmdir()


def quota(cores: float) -> Group:
    """The run gets so many cores on average, in periods of 100 ms."""
    return Group("cpu", (("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", str(int(cores * 100_000)))))


def disk_rate(megabytes_per_s: float) -> Group:
    return Group("blkio", (("blkio.throttle.read_bps_device", f"{{disk}} {int(megabytes_per_s * 1e6)}"),))


def disk_requests(per_s: int) -> Group:
    return Group("blkio", (("blkio.throttle.read_iops_device", f"{{disk}} {per_s}"),))


def memory(megabytes: int) -> Group:
    return Group("memory", (("memory.limit_in_bytes", str(megabytes << 20)),))


@dataclass(frozen=True)
class ColdCache(Means):
    """No file of the data is in the page cache at the start; with `every_s`, again and again."""

    every_s: float = 0

    @contextmanager
    def around(self, run: Surroundings) -> Iterator[None]:
        drop_cache(run.plain)
        ended = threading.Event()
        if self.every_s:
            threading.Thread(target=self._repeat, args=(run.plain, ended), daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _repeat(self, folder: Path, ended: threading.Event) -> None:
        while not ended.wait(self.every_s):
            drop_cache(folder)


def drop_cache(folder: Path) -> None:
    """Remove the files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Neighbours(Means):
    """Other programs that compute checksums without end."""

    count: int
    nice: int = 0

    def missing(self) -> str | None:
        return None if shutil.which("sha512sum") else "there is no sha512sum here"

    @contextmanager
    def around(self, run: Surroundings) -> Iterator[None]:
        hashing = ("nice", "-n", str(self.nice), "sha512sum", "/dev/zero")
        processes = [subprocess.Popen(hashing, stdout=subprocess.DEVNULL) for _ in range(self.count)]
        try:
            yield
        finally:
            for process in processes:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class StoppedWorker(Means):
    """One worker is stopped and continued by signals, over and over, as if its core were taken away."""

    number: int
    stopped_s: float
    running_s: float

    @contextmanager
    def around(self, run: Surroundings) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._cycle, args=(run, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _cycle(self, run: Surroundings, ended: threading.Event) -> None:
        while not ended.wait(0.1):
            for worker in self._worker(run):
                with suppress(psutil.Error):
                    worker.send_signal(signal.SIGSTOP)
                    ended.wait(self.stopped_s)
                    worker.send_signal(signal.SIGCONT)
                    ended.wait(max(0.0, self.running_s - 0.1))

    def _worker(self, run: Surroundings) -> list[psutil.Process]:
        """Return the worker, if it runs: workers are the youngest generation of processes."""
        if run.pid is None:
            return []
        with suppress(psutil.Error):
            for process in psutil.Process(run.pid).children(recursive=True):
                workers = [child for child in process.children() if child.cmdline() == process.cmdline()]
                if len(workers) > self.number:
                    return [sorted(workers, key=lambda worker: worker.pid)[self.number]]
        return []


@dataclass(frozen=True)
class HttpStore(Means):
    """A server on this machine that answers slowly."""

    delay_ms: float
    late_share: float = 0
    late_ms: float = 0

    @contextmanager
    def around(self, run: Surroundings) -> Iterator[None]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        numbers = ("--delay-ms", self.delay_ms, "--late-share", self.late_share, "--late-ms", self.late_ms)
        command = (sys.executable, "-m", f"{HERE}.http_store", "--port", str(port), *map(str, numbers))
        with _program(*command):
            _wait_until(lambda: _listens(port), "the HTTP server")
            run.host = f"127.0.0.1:{port}"
            yield


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _disk(folder: Path) -> str:
    device = os.stat(folder).st_dev
    entry = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    return ((entry.parent if (entry / "partition").exists() else entry) / "dev").read_text().strip()


def _wait_until(condition: Callable[[], object], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.02)
