"""Every fault runs and does what its docstring says; the tests check its effect and not the time it takes."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from penstock.errors import PenstockError
from penstock.testing import FakeClock
from tests.support.faults import (
    FAULTS,
    STEPS,
    Case,
    Training,
    cgroup,
    cores,
    disks,
    fault,
    imbalance,
    ipc,
    latency,
)
from tests.support.faults.detached_process import detached_process
from tests.support.faults.image_dataset import BATCH, ImageDataset, image_files, loader, noise_file
from tests.support.faults.programs import store

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


def skip_because_of(missing):
    """Return a mark that skips a test if `missing` is a reason and not None."""
    return pytest.mark.skipif(missing is not None, reason=str(missing))


needs_quota = skip_because_of(cores.no_quota(Path()))
needs_fuse = skip_because_of(disks.no_fuse(Path()))


@dataclass
class Touch:
    """Extra work that leaves a file for each sample."""

    folder: Path

    def __call__(self, index):
        (self.folder / str(index)).touch()


@dataclass
class Exclusive:
    """Extra work that fails if two processes do it at the same time."""

    flag: Path

    def __call__(self, index):
        os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        time.sleep(0.001)
        self.flag.unlink()


TESTED_IN_A_FRESH_PROCESS = ("threads_in_workers",)
"""Tested in tests/benchmarks/test_faults_named.py, because its workers use OpenMP. That hangs in a fork of a process
that has used it, and other tests in this process do."""

# -- all faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in TESTED_IN_A_FRESH_PROCESS])
def test_a_fault_runs_all_its_steps_and_leaves_no_thread_file_or_mount(name, folder):
    if reason := FAULTS[name].missing(folder):
        pytest.skip(reason)
    with FAULTS[name].build(Case(folder=folder, severity="mild", steps=4)) as training:
        assert training.run().steps == 4
    assert not [thread for thread in threading.enumerate() if thread.name == "gil-hog"]
    assert not list(folder.glob("metrics-*"))
    prefix = f"penstock-disk-{os.getpid()}-"  # other processes may run these tests at the same time
    assert not [disk for disk in psutil.disk_partitions(all=True) if prefix in disk.mountpoint]


@pytest.mark.parametrize("name", ["many_readers", "uneven_shards", "few_shards", "one_worker", "no_workers"])
def test_the_training_has_as_many_steps_without_the_fault(name, folder):
    if reason := FAULTS[name].missing(folder):
        pytest.skip(reason)
    with FAULTS[name].build(Case(folder=folder, removed=True, steps=4)) as training:
        assert training.run().steps == 4


def test_every_fault_has_a_description_and_all_but_two_expect_a_rule():
    assert all(fault.about and fault.name == name for name, fault in FAULTS.items())
    assert [name for name, fault in FAULTS.items() if fault.expect is None] == ["healthy", "compute_bound"]


def test_a_case_picks_a_value_by_severity_unless_the_fault_is_removed(folder):
    values = {"mild": 1, "severe": 2, "removed": 0}
    assert Case(folder=folder, severity="mild").pick(**values) == 1
    assert Case(folder=folder, severity="severe").pick(**values) == 2
    assert Case(folder=folder, severity="severe", removed=True).pick(**values) == 0
    assert Case(folder=folder, severity="severe", removed=True).level(mild=1, severe=2) == 2


def test_a_training_counts_its_steps_and_its_time_over_all_epochs():
    clock = FakeClock()
    training = Training(loader=[1, 2, 3], step=lambda batch: clock.sleep(batch), epochs=2)
    outcome = training.run(clock=clock)
    assert (outcome.steps, outcome.seconds, outcome.steps_per_s) == (6, 12.0, 0.5)


def test_a_training_can_run_over_a_watched_loader_instead_of_its_own():
    batches = []
    Training(loader=[1, 2], step=batches.append).run(["watched"])
    assert batches == ["watched"]


def test_a_fault_cleans_up_after_a_training_that_raises(folder):
    cleaned_up = []

    @fault(expect="some_rule")
    def my_fault(case):
        """Something is wrong."""
        try:
            yield Training(loader=[case.seed])
        finally:
            cleaned_up.append(case.seed)

    with pytest.raises(KeyError), my_fault.build(Case(folder=folder, seed=3)):
        raise KeyError
    assert cleaned_up == [3]


# -- single faults -----------------------------------------------------------------------------------------------------


def test_only_the_slow_worker_does_the_extra_work(folder, tmp_path):
    dataset = ImageDataset(image_files(folder), 6 * BATCH, imbalance.InOneWorker(1, Touch(tmp_path)))
    for _ in loader(dataset, num_workers=3):
        pass
    batches = {int(file.name) // BATCH for file in tmp_path.iterdir()}
    assert batches == {1, 4}  # batch i belongs to worker i mod 3


def test_one_sample_in_a_hundred_is_heavy_and_the_seed_determines_which(folder):
    def heavy_samples(seed):
        with FAULTS["stragglers"].build(Case(folder=folder, seed=seed)) as training:
            return training.loader.dataset.extra.samples

    assert len(heavy_samples(0)) == STEPS * BATCH // 100
    assert heavy_samples(0) == heavy_samples(0)
    assert heavy_samples(0) != heavy_samples(1)


def test_with_fewer_shards_than_workers_some_workers_deliver_nothing(folder, tmp_path):
    dataset = imbalance.ShardedImages(image_files(folder), (8, 8), imbalance.InOneWorker(2, Touch(tmp_path)))
    assert len(list(loader(dataset, num_workers=3))) == 2
    assert not list(tmp_path.iterdir())


def test_one_worker_at_a_time_works_under_the_lock(folder, tmp_path):
    with FAULTS["one_lock"].build(Case(folder=folder, steps=6)) as training:
        lock = training.loader.dataset.extra.lock
    dataset = ImageDataset(image_files(folder), 6 * BATCH, ipc.UnderLock(lock, Exclusive(tmp_path / "inside")))
    assert len(list(loader(dataset, num_workers=4))) == 6


def test_pickled_batches_are_arrays_and_without_the_fault_tensors(folder):
    def batch_type(removed):
        with FAULTS["pickled_batches"].build(
            Case(folder=folder, severity="mild", steps=1, removed=removed)
        ) as training:
            return type(next(iter(training.loader)))

    assert batch_type(removed=False) is np.ndarray
    assert batch_type(removed=True) is torch.Tensor


def test_random_reads_are_scattered_and_never_read_a_region_twice(folder):
    dataset = disks._uncached_regions(Case(folder=folder, steps=20), disks.SMALL_BYTES, disks.SMALL_READS)
    offsets = dataset.offsets.ravel().tolist()
    assert len(offsets) == 20 * BATCH * disks.SMALL_READS == len(set(offsets))
    assert max(offsets) + disks.SMALL_BYTES <= dataset.file.stat().st_size
    assert offsets != sorted(offsets)


def test_data_files_are_written_once(folder):
    file = noise_file(folder, 5000)
    written_ns = file.stat().st_mtime_ns
    assert noise_file(folder, 5000).stat().st_mtime_ns == written_ns
    assert file.stat().st_size == 5000
    assert not list(folder.glob("*.bin.*"))


# -- detached processes, the store -------------------------------------------------------------------------------------


def listening_pid(port):
    """Return the process that listens on this port, or None."""
    connections = psutil.net_connections("tcp4")
    return next((each.pid for each in connections if each.laddr.port == port and not each.raddr), None)


def test_a_detached_process_is_not_our_child_and_ends_with_the_block(folder):
    with detached_process("store", str(image_files(folder)[0].parent), "0", "0", "0") as port:
        pid = listening_pid(int(port))
        assert pid is not None
        assert pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    assert listening_pid(int(port)) is None


def test_a_detached_process_ends_when_the_process_that_started_it_is_killed(folder):
    images = str(image_files(folder)[0].parent)
    script = (
        "import os, signal, sys\n"
        "from tests.support.faults.detached_process import detached_process\n"
        "with detached_process('store', sys.argv[1], '0', '0', '0') as port:\n"
        "    print(port, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, images], stdout=subprocess.PIPE, timeout=60)
    port = int(done.stdout)
    deadline = time.monotonic() + 20
    while listening_pid(port) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert listening_pid(port) is None


def test_a_program_that_does_not_start_is_an_error(tmp_path, capfd):
    with (
        pytest.raises(PenstockError, match="store did not start"),
        detached_process("store", str(tmp_path / "absent"), "0", "0", "0"),
    ):
        pass
    assert "FileNotFoundError" in capfd.readouterr().err


def test_images_from_the_store_are_those_of_the_files(folder):
    files = image_files(folder)
    with detached_process("store", str(files[0].parent), "0", "0", "0") as port:
        remote = latency.RemoteImages(int(port), tuple(file.name for file in files), len(files))
        local = ImageDataset(files, len(files))
        assert all(np.array_equal(remote[index], local[index]) for index in (0, 5, 5, 63))
        remote._connection.close()


def test_the_store_waits_before_each_answer_and_longer_before_some(folder, monkeypatch):
    waits_s = []

    async def sleep(seconds):
        waits_s.append(seconds)

    monkeypatch.setattr(store.asyncio, "sleep", sleep)
    files = image_files(folder)
    server = store.Store(files[0].parent, 0.01, 0.02, 1.0)
    store.asyncio.run(server.serve(_Requests([files[0].name] * 1000), _Answers()))
    assert len(waits_s) == 1000
    assert set(waits_s) == {0.01, 1.01}
    assert 5 <= waits_s.count(1.01) <= 40


class _Requests:
    """Stands for the StreamReader of a connection with these requests."""

    def __init__(self, names):
        self._names = iter(names)

    async def readline(self):
        return next(self._names, "").encode()


class _Answers:
    """Stands for the StreamWriter; checks that each answer has the size that it announces."""

    def write(self, data):
        assert data.partition(b"\n")[0] == str(len(data.partition(b"\n")[2])).encode()

    async def drain(self):
        pass

    def close(self):
        pass


# -- kernel limits, the disk with one head -----------------------------------------------------------------------------


def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@needs_quota
def test_under_the_quota_the_kernel_counts_throttling(tmp_path):
    before = Path("/proc/self/cgroup").read_text()
    with cgroup.limited("cpu", {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "2000"}) as group:
        spin(0.02)  # ten times what a period allows
        counters = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    assert int(counters["nr_throttled"]) > 0
    assert not group.exists()
    assert Path("/proc/self/cgroup").read_text() == before


def test_the_limit_is_set_on_the_disk_under_the_folder(folder):
    if reason := disks.no_throttle(folder):
        pytest.skip(reason)
    disk = cgroup.disk_number(folder)
    with cgroup.limited("blkio", {"blkio.throttle.read_bps_device": f"{disk} 1000000"}) as group:
        assert (group / "blkio.throttle.read_bps_device").read_text().split() == [disk, "1000000"]


def test_a_controller_that_the_kernel_does_not_have_is_named_as_missing():
    assert "no cgroup v1 controller absent" in cgroup.missing("absent", "absent.limit")


@pytest.mark.skipif(sys.platform != "linux", reason="FUSE is used on Linux only")
def test_a_missing_fuse_library_is_a_reason_and_no_error(monkeypatch):
    monkeypatch.setattr(disks.os, "access", lambda path, mode: True)
    monkeypatch.setattr(disks.os, "geteuid", lambda: 0)
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    assert "mfusepy does not work here" in disks.no_fuse(Path())


@needs_fuse
def test_two_readers_make_the_head_seek_at_each_read_and_one_reader_does_not(folder, monkeypatch):
    from tests.support.faults.programs import seekdisk

    files = [noise_file(folder / "heads", 1 << 16, name) for name in ("a", "b")]
    waits_s = []
    monkeypatch.setattr(seekdisk.time, "sleep", waits_s.append)
    disk = seekdisk.SeekDisk(str(folder / "heads"), seek_s=1.0, open_s=0.5, bytes_per_s=1 << 40)
    first, second = (disk.open(f"/{file.name}", 0) for file in files)
    waits_s.clear()
    for offset in range(0, 1 << 16, 1 << 13):
        disk.read(f"/{files[0].name}", 1 << 13, offset, first)
    assert sum(wait_s >= 1 for wait_s in waits_s) == 1
    waits_s.clear()
    for offset in range(0, 1 << 16, 1 << 13):
        disk.read(f"/{files[0].name}", 1 << 13, offset, first)
        disk.read(f"/{files[1].name}", 1 << 13, offset, second)
    assert sum(wait_s >= 1 for wait_s in waits_s) == 16
    disk.release("", first)
    disk.release("", second)


@needs_fuse
def test_the_disk_has_the_same_files_and_is_unmounted_after_the_block(folder):
    file = noise_file(folder / "mounted", 100_000)
    with disks.seek_disk(file.parent) as disk:
        assert (disk / file.name).read_bytes() == file.read_bytes()
        assert [entry.name for entry in disk.iterdir()] == [file.name]
        assert not (disk / "absent").exists()
    assert not disk.exists()
