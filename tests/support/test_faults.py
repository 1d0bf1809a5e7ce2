"""Every fault runs, and does what it says: seen by its own effect, not by the clock."""

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
    handover,
    latency,
    uneven,
)
from tests.support.faults.apart import apart
from tests.support.faults.material import BATCH, Pictures, loader, noise_file, picture_files
from tests.support.faults.programs import store

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


def needs(why):
    return pytest.mark.skipif(why is not None, reason=str(why))


quota_here = needs(cores.no_quota(Path()))
fuse_here = needs(disks.no_fuse(Path()))


@dataclass
class Touch:
    """Leaves a file per sample."""

    folder: Path

    def __call__(self, index):
        (self.folder / str(index)).touch()


@dataclass
class Alone:
    """Fails if another process is in here."""

    flag: Path

    def __call__(self, index):
        os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        time.sleep(0.001)
        self.flag.unlink()


IN_A_FRESH_PROCESS = ("threads_in_workers",)
"""Its workers use OpenMP, which hangs in a fork of a process that has used it, as other tests here do."""

# -- the contract --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in IN_A_FRESH_PROCESS])
def test_a_fault_runs_all_its_steps_and_leaves_nothing_behind(name, folder):
    each = FAULTS[name]
    if why := each.missing(folder):
        pytest.skip(why)
    with each.build(Case(folder=folder, severity="mild", steps=4)) as training:
        assert training.run().steps == 4
    assert not [thread for thread in threading.enumerate() if thread.name == "hog"]
    assert not list(folder.glob("metrics-*"))
    mine = f"penstock-disk-{os.getpid()}-"  # other tests may run beside this one
    assert not [part for part in psutil.disk_partitions(all=True) if mine in part.mountpoint]


@pytest.mark.parametrize("name", ["many_readers", "uneven_shards", "few_shards", "one_worker", "no_workers"])
def test_without_the_fault_the_training_is_as_long(name, folder):
    each = FAULTS[name]
    if why := each.missing(folder):
        pytest.skip(why)
    with each.build(Case(folder=folder, removed=True, steps=4)) as training:
        assert training.run().steps == 4


def test_every_fault_says_what_is_wrong_and_names_a_rule_or_nothing():
    assert all(each.about and each.name == name for name, each in FAULTS.items())
    assert [name for name, each in FAULTS.items() if each.expect is None] == ["healthy", "compute_bound"]


def test_a_case_picks_by_severity_unless_the_fault_is_removed(folder):
    asked = {"mild": 1, "severe": 2, "removed": 0}
    assert Case(folder=folder, severity="mild").pick(**asked) == 1
    assert Case(folder=folder, severity="severe").pick(**asked) == 2
    assert Case(folder=folder, severity="severe", removed=True).pick(**asked) == 0
    assert Case(folder=folder, severity="severe", removed=True).level(mild=1, severe=2) == 2


def test_a_training_counts_its_steps_and_its_time_over_all_passes():
    clock = FakeClock()
    training = Training(loader=[1, 2, 3], step=lambda batch: clock.sleep(batch), passes=2)
    outcome = training.run(clock=clock)
    assert (outcome.steps, outcome.seconds, outcome.steps_per_s) == (6, 12.0, 0.5)


def test_a_training_runs_over_the_watched_loader_instead():
    seen = []
    Training(loader=[1, 2], step=seen.append).run(["watched"])
    assert seen == ["watched"]


def test_a_fault_cleans_up_after_a_training_that_raises(folder):
    ended = []

    @fault(expect="nothing_known")
    def mine(case):
        """Mine."""
        try:
            yield Training(loader=[case.seed])
        finally:
            ended.append(case.seed)

    with pytest.raises(KeyError), mine.build(Case(folder=folder, seed=3)):
        raise KeyError
    assert ended == [3]


# -- what each does --------------------------------------------------------------------------------------------------


def test_only_the_lagging_worker_gets_the_extra(folder, tmp_path):
    dataset = Pictures(picture_files(folder), 6 * BATCH, uneven.InWorker(1, Touch(tmp_path)))
    for _ in loader(dataset, num_workers=3):
        pass
    batches = {int(file.name) // BATCH for file in tmp_path.iterdir()}
    assert batches == {1, 4}  # batch i belongs to worker i mod 3


def test_stragglers_are_one_in_a_hundred_and_the_same_ones_for_a_seed(folder):
    def chosen(seed):
        with FAULTS["stragglers"].build(Case(folder=folder, seed=seed)) as training:
            return training.loader.dataset.extra.chosen

    assert len(chosen(0)) == STEPS * BATCH // 100
    assert chosen(0) == chosen(0)
    assert chosen(0) != chosen(1)


def test_with_fewer_shards_than_workers_some_deliver_nothing(folder, tmp_path):
    dataset = uneven.Shards(picture_files(folder), (8, 8), uneven.InWorker(2, Touch(tmp_path)))
    assert len(list(loader(dataset, num_workers=3))) == 2
    assert not list(tmp_path.iterdir())


def test_the_lock_lets_one_worker_in_at_a_time(folder, tmp_path):
    with FAULTS["one_lock"].build(Case(folder=folder, steps=6)) as training:
        lock = training.loader.dataset.extra.lock
    dataset = Pictures(picture_files(folder), 6 * BATCH, handover.Locked(lock, Alone(tmp_path / "inside")))
    assert len(list(loader(dataset, num_workers=4))) == 6


def test_batches_are_pickled_arrays_and_in_the_twin_tensors(folder):
    def kind(removed):
        with FAULTS["pickled_batches"].build(
            Case(folder=folder, severity="mild", steps=1, removed=removed)
        ) as training:
            return type(next(iter(training.loader)))

    assert kind(removed=False) is np.ndarray
    assert kind(removed=True) is torch.Tensor


def test_scattered_reads_never_touch_a_place_twice(folder):
    extents = disks._cold(Case(folder=folder, steps=20), disks.SMALL_BYTES, disks.SMALL_READS)
    offsets = extents.offsets.ravel().tolist()
    assert len(offsets) == 20 * BATCH * disks.SMALL_READS == len(set(offsets))
    assert max(offsets) + disks.SMALL_BYTES <= extents.file.stat().st_size
    assert offsets != sorted(offsets)


def test_made_files_are_made_once(folder):
    first = noise_file(folder, 5000)
    made = first.stat().st_mtime_ns
    assert noise_file(folder, 5000).stat().st_mtime_ns == made
    assert first.stat().st_size == 5000
    assert not list(folder.glob("*.bin.*"))


# -- processes apart, the store ----------------------------------------------------------------------------------------


def listener(port):
    """The process that listens there, if any."""
    return next(
        (each.pid for each in psutil.net_connections("tcp4") if each.laddr.port == port and not each.raddr), None
    )


def test_a_process_apart_is_not_our_child_and_ends_with_the_block(folder):
    with apart("store", str(picture_files(folder)[0].parent), "0", "0", "0") as port:
        pid = listener(int(port))
        assert pid is not None
        assert pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    assert listener(int(port)) is None


def test_a_process_apart_ends_when_its_user_is_killed(folder):
    pictures = str(picture_files(folder)[0].parent)
    script = (
        "import os, signal, sys\n"
        "from tests.support.faults.apart import apart\n"
        "with apart('store', sys.argv[1], '0', '0', '0') as port:\n"
        "    print(port, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, pictures], stdout=subprocess.PIPE, timeout=60)
    port = int(done.stdout)
    deadline = time.monotonic() + 20
    while listener(port) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert listener(port) is None


def test_a_program_that_cannot_start_is_an_error(tmp_path, capfd):
    with (
        pytest.raises(PenstockError, match="store did not start"),
        apart("store", str(tmp_path / "absent"), "0", "0", "0"),
    ):
        pass
    assert "FileNotFoundError" in capfd.readouterr().err


def test_the_store_gives_the_files_as_they_are(folder):
    files = picture_files(folder)
    with apart("store", str(files[0].parent), "0", "0", "0") as port:
        remote = latency.Remote(int(port), tuple(file.name for file in files), len(files))
        local = Pictures(files, len(files))
        assert all(np.array_equal(remote[index], local[index]) for index in (0, 5, 5, 63))
        remote._connection.close()


def test_the_store_waits_before_each_answer_and_longer_for_some(folder, monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr(store.asyncio, "sleep", sleep)
    files = picture_files(folder)
    kept = store.Store(files[0].parent, 0.01, 0.02, 1.0)
    store.asyncio.run(kept.serve(_Requests([files[0].name] * 1000), _Answers()))
    assert len(waited) == 1000
    assert set(waited) == {0.01, 1.01}
    assert 5 <= waited.count(1.01) <= 40


class _Requests:
    def __init__(self, names):
        self._names = iter(names)

    async def readline(self):
        return next(self._names, "").encode()


class _Answers:
    def write(self, data):
        assert data.partition(b"\n")[0] == str(len(data.partition(b"\n")[2])).encode()

    async def drain(self):
        pass

    def close(self):
        pass


# -- limits of the kernel, a disk with one head ------------------------------------------------------------------------


def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@quota_here
def test_under_the_quota_the_kernel_counts_throttling(tmp_path):
    before = Path("/proc/self/cgroup").read_text()
    with cgroup.limited("cpu", {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "2000"}) as group:
        spin(0.02)  # ten times what a period allows
        counters = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    assert int(counters["nr_throttled"]) > 0
    assert not group.exists()
    assert Path("/proc/self/cgroup").read_text() == before


def test_the_limit_is_set_on_the_disk_under_the_folder(folder):
    if why := disks.no_throttle(folder):
        pytest.skip(why)
    disk = cgroup.disk_number(folder)
    with cgroup.limited("blkio", {"blkio.throttle.read_bps_device": f"{disk} 1000000"}) as group:
        assert (group / "blkio.throttle.read_bps_device").read_text().split() == [disk, "1000000"]


def test_what_the_kernel_does_not_offer_is_said():
    assert "no cgroup v1 controller spoons" in cgroup.missing("spoons", "spoons.bent")


@pytest.mark.skipif(sys.platform != "linux", reason="FUSE as we use it is Linux's")
def test_without_the_system_s_library_there_is_a_reason_and_no_failure(monkeypatch):
    monkeypatch.setattr(disks.os, "access", lambda path, mode: True)
    monkeypatch.setattr(disks.os, "geteuid", lambda: 0)
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    assert "mfusepy does not work here" in disks.no_fuse(Path())


@fuse_here
def test_two_readers_make_the_head_seek_at_each_read_and_one_does_not(folder, monkeypatch):
    from tests.support.faults.programs import seekdisk

    files = [noise_file(folder / "heads", 1 << 16, name) for name in ("a", "b")]
    waits = []
    monkeypatch.setattr(seekdisk.time, "sleep", waits.append)
    disk = seekdisk.SeekDisk(str(folder / "heads"), seek_s=1.0, open_s=0.5, bytes_per_s=1 << 40)
    first, second = (disk.open(f"/{file.name}", 0) for file in files)
    waits.clear()
    for offset in range(0, 1 << 16, 1 << 13):
        disk.read(f"/{files[0].name}", 1 << 13, offset, first)
    assert sum(wait >= 1 for wait in waits) == 1
    waits.clear()
    for offset in range(0, 1 << 16, 1 << 13):
        disk.read(f"/{files[0].name}", 1 << 13, offset, first)
        disk.read(f"/{files[1].name}", 1 << 13, offset, second)
    assert sum(wait >= 1 for wait in waits) == 16
    disk.release("", first)
    disk.release("", second)


@fuse_here
def test_the_disk_shows_the_same_files_and_is_gone_after_the_block(folder):
    file = noise_file(folder / "mounted", 100_000)
    with disks.seek_disk(file.parent) as disk:
        assert (disk / file.name).read_bytes() == file.read_bytes()
        assert [each.name for each in disk.iterdir()] == [file.name]
        assert not (disk / "absent").exists()
    assert not disk.exists()
