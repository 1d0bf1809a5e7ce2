"""Stack samples of real threads in real system calls, and the sampler that takes them."""

import os
import socket
import sys
import threading
import time

import pytest

from penstock.testing import FakeClock
from penstock.watcher.machine.procfs import ProcFile
from penstock.watcher.stack_sampler import IDLE_S, WINDOW_S, SampledThread, StackSampler

linux = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")


class BlockedThread:
    """A thread that is in `call` until `unblock` lets that return."""

    def __init__(self, call, unblock):
        self._unblock = unblock
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)

    def _run(self, call):
        self._began.set()
        call()

    def __enter__(self):
        self._thread.start()
        self._began.wait()
        return self

    def __exit__(self, *_):
        self._unblock()
        self._thread.join()

    def assert_sampled_as(self, state, function):
        """Check a sample of the thread, repeatedly: the thread may not have entered the call yet."""
        sampled = SampledThread(self._thread.native_id, self._thread.ident)
        deadline = time.monotonic() + 10
        while (sample := sampled.sample()) != (state, function) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert sample == (state, function)


def wait_for_lock(lock):
    with lock:
        pass


@linux
def test_a_thread_that_waits_for_a_lock_has_state_lock():
    lock = threading.Lock()
    lock.acquire()
    with BlockedThread(lambda: wait_for_lock(lock), lock.release) as blocked:
        blocked.assert_sampled_as("lock", f"{__name__}:wait_for_lock")


@linux
def test_a_thread_that_sleeps_has_state_sleep():
    done = threading.Event()

    def nap():
        while not done.is_set():
            time.sleep(0.2)

    with BlockedThread(nap, done.set) as blocked:
        blocked.assert_sampled_as("sleep", f"{__name__}:{nap.__qualname__}")


@linux
@pytest.mark.parametrize("call", [lambda sock: sock.recv(1), lambda sock: os.read(sock.fileno(), 1)])
def test_a_thread_that_reads_a_socket_has_state_network_whatever_the_call(call):
    local, remote = socket.socketpair()
    with local, remote, BlockedThread(lambda: call(local), lambda: remote.send(b"x")) as blocked:
        blocked.assert_sampled_as("network", f"{__name__}:<lambda>")


@linux
def test_a_thread_that_reads_a_pipe_has_state_other():
    read_end, write_end = os.pipe()

    def read():
        os.read(read_end, 1)

    with BlockedThread(read, lambda: os.write(write_end, b"x")) as blocked:
        blocked.assert_sampled_as("other", f"{__name__}:{read.__qualname__}")
    os.close(read_end)
    os.close(write_end)


@linux
def test_a_thread_that_reads_another_file_has_state_read():
    event = os.eventfd(0)  # a read of a regular file cannot be made to wait

    def read():
        os.read(event, 8)

    with BlockedThread(read, lambda: os.eventfd_write(event, 1)) as blocked:
        blocked.assert_sampled_as("read", f"{__name__}:{read.__qualname__}")
    os.close(event)


@linux
def test_a_thread_that_opens_a_file_has_state_open(tmp_path):
    os.mkfifo(tmp_path / "fifo")

    def unblock():
        os.close(os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK))

    def open_reader():
        os.close(os.open(tmp_path / "fifo", os.O_RDONLY))

    with BlockedThread(open_reader, unblock) as blocked:
        blocked.assert_sampled_as("open", f"{__name__}:{open_reader.__qualname__}")


@linux
def test_a_thread_that_waits_for_the_gil_counts_as_running():
    done = []
    threads = [threading.Thread(target=spin, args=(done,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    sampled = SampledThread(threads[0].native_id, threads[0].ident)
    samples = []
    for _ in range(20):
        time.sleep(0.002)
        samples.append(sampled.sample())
    done.append(True)
    for thread in threads:
        thread.join()
    assert {state for state, _ in samples} == {"running"}
    assert f"{__name__}:spin" in {function for _, function in samples}


def spin(done):
    while not done:
        sum(range(50))


@linux
@pytest.mark.parametrize(
    ("call", "letter", "state"),
    [
        ("-1 0x7ffd 0x7f00", "D", "read"),
        ("-1 0x7ffd 0x7f00", "S", "read"),
        ("-1 0x7ffd 0x7f00", "R", "running"),
        ("-1 0x7ffd 0x7f00", "T", "other"),
        ("", "D", "read"),
        ("", "S", "other"),
        ("", "R", "running"),
        ("99999 0x0 0x0", "S", "other"),
    ],
)
def test_a_thread_that_sleeps_outside_any_call_waits_for_a_page(call, letter, state, tmp_path):
    sampled = SampledThread(threading.get_native_id(), threading.get_ident())
    (tmp_path / "syscall").write_text(call)
    (tmp_path / "stat").write_text(f"77 (a) S name) {letter} 1 2 3")
    sampled._syscall, sampled._stat = ProcFile(tmp_path / "syscall"), ProcFile(tmp_path / "stat")
    assert sampled.sample()[0] == state


def test_a_thread_that_has_ended_has_unknown_state_and_function():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert SampledThread(2**22 + 1, thread.ident + 1).sample() == ("other", "?")


def sampler_of_this_thread(put=None, clock=None):
    sampler = StackSampler(threading.get_native_id(), threading.get_ident(), put, clock or FakeClock())
    sampler._sampled_thread = SampledThread(threading.get_native_id(), threading.get_ident())
    return sampler


def test_a_sampler_samples_only_while_it_is_active():
    sampler = sampler_of_this_thread()
    sampler.tick()
    assert sampler.take() is None
    sampler.active = True
    sampler.tick()
    sampler.tick()
    sampler.pause()
    sampler.tick()
    counts = sampler.take()
    assert (counts.samples, counts.states.total(), counts.functions.total()) == (2, 2, 2)
    assert sampler.take() is None


def test_a_sampler_takes_no_samples_while_skip_is_true():
    skip = [True]
    ids = threading.get_native_id(), threading.get_ident()
    sampler = StackSampler(*ids, clock=FakeClock(), skip=lambda: skip[0])
    sampler._sampled_thread = SampledThread(*ids)
    sampler.active = True
    sampler.tick()
    assert sampler.take() is None
    skip[0] = False
    sampler.tick()
    assert sampler.take().samples == 1


def test_a_sampler_delivers_its_counts_once_per_window():
    clock, delivered = FakeClock(), []
    sampler = sampler_of_this_thread(delivered.append, clock)
    sampler.active = True
    for _ in range(8):
        clock.advance(WINDOW_S / 4)
        sampler.tick()
    assert [counts.samples for counts in delivered] == [4, 4]


def test_a_sampler_that_was_paused_for_long_ends_its_thread():
    clock = FakeClock()
    sampler = sampler_of_this_thread(clock=clock)
    sampler.active = True
    assert sampler.tick()
    sampler.pause()
    clock.advance(IDLE_S)
    assert not sampler.tick()


def sampler_threads():
    return [thread for thread in threading.enumerate() if thread.name == "penstock-stack-sampler"]


def test_the_thread_exists_from_the_first_resume_until_stopped():
    before = sampler_threads()
    sampler = StackSampler(threading.get_native_id(), threading.get_ident())
    assert sampler_threads() == before
    sampler.resume()
    (thread,) = set(sampler_threads()) - set(before)
    deadline = time.monotonic() + 10
    while (counts := sampler.take()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counts.samples >= 1
    sampler.stop()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_no_thread_and_starts_none():
    sampler = StackSampler(threading.get_native_id(), threading.get_ident())
    pid = os.fork()
    if pid == 0:
        sampler.resume()
        os._exit(len(sampler_threads()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
