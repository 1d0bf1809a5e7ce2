"""Where threads are, asked of real threads in real system calls."""

import os
import socket
import sys
import threading
import time

import pytest

from penstock.testing import FakeClock
from penstock.watcher.machine.procfs import ProcFile
from penstock.watcher.stack_sampler import IDLE_S, WINDOW_S, StackSampler, ThreadStacks

linux = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")


class Stuck:
    """A thread that is in `call` until it is let go."""

    def __init__(self, call, let_go):
        self._let_go = let_go
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
        self._let_go()
        self._thread.join()

    def looks_like(self, state, function):
        """Soon: the thread may still be on its way into the call."""
        view = ThreadStacks(self._thread.native_id, self._thread.ident)
        deadline = time.monotonic() + 10
        while (seen := view.look()) != (state, function) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert seen == (state, function)


def wait_for_lock(lock):
    with lock:
        pass


@linux
def test_waiting_for_a_lock_is_told():
    lock = threading.Lock()
    lock.acquire()
    with Stuck(lambda: wait_for_lock(lock), lock.release) as stuck:
        stuck.looks_like("lock", f"{__name__}:wait_for_lock")


@linux
def test_sleeping_is_told():
    done = threading.Event()

    def nap():
        while not done.is_set():
            time.sleep(0.2)

    with Stuck(nap, done.set) as stuck:
        stuck.looks_like("sleep", f"{__name__}:test_sleeping_is_told.<locals>.nap")


@linux
@pytest.mark.parametrize("call", [lambda end: end.recv(1), lambda end: os.read(end.fileno(), 1)])
def test_reading_a_socket_is_network_by_whatever_call(call):
    here, there = socket.socketpair()
    with here, there, Stuck(lambda: call(here), lambda: there.send(b"x")) as stuck:
        stuck.looks_like("network", f"{__name__}:<lambda>")


@linux
def test_reading_a_pipe_is_waiting_for_another_process():
    read_end, write_end = os.pipe()
    with Stuck(lambda: os.read(read_end, 1), lambda: os.write(write_end, b"x")) as stuck:
        name = test_reading_a_pipe_is_waiting_for_another_process.__name__
        stuck.looks_like("other", f"{__name__}:{name}.<locals>.<lambda>")
    os.close(read_end)
    os.close(write_end)


@linux
def test_reading_any_other_file_is_a_read():
    event = os.eventfd(0)  # of all files, the one whose read can be made to wait
    with Stuck(lambda: os.read(event, 8), lambda: os.eventfd_write(event, 1)) as stuck:
        stuck.looks_like("read", f"{__name__}:test_reading_any_other_file_is_a_read.<locals>.<lambda>")
    os.close(event)


@linux
def test_opening_a_file_that_does_not_come_is_told(tmp_path):
    os.mkfifo(tmp_path / "fifo")

    def let_go():
        os.close(os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK))

    def opening():
        os.close(os.open(tmp_path / "fifo", os.O_RDONLY))

    with Stuck(opening, let_go) as stuck:
        stuck.looks_like("open", f"{__name__}:{opening.__qualname__}")


@linux
def test_waiting_for_the_interpreter_counts_as_running_not_as_a_lock():
    done = []
    threads = [threading.Thread(target=spin, args=(done,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    view = ThreadStacks(threads[0].native_id, threads[0].ident)
    seen = [view.look() for _ in range(20) if not time.sleep(0.002)]
    done.append(True)
    for thread in threads:
        thread.join()
    assert {state for state, _ in seen} == {"running"}
    assert f"{__name__}:spin" in {function for _, function in seen}


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
    view = ThreadStacks(threading.get_native_id(), threading.get_ident())
    (tmp_path / "syscall").write_text(call)
    (tmp_path / "stat").write_text(f"77 (a) S name) {letter} 1 2 3")
    view._syscall, view._stat = ProcFile(tmp_path / "syscall"), ProcFile(tmp_path / "stat")
    assert view.look()[0] == state


def test_a_thread_that_is_gone_is_nowhere():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert ThreadStacks(2**22 + 1, thread.ident + 1).look() == ("other", "?")


def sampler_of_this_thread(put=None, clock=None):
    sampler = StackSampler(threading.get_native_id(), threading.get_ident(), put, clock or FakeClock())
    sampler.stack_samples = ThreadStacks(threading.get_native_id(), threading.get_ident())
    return sampler


def test_a_sampler_looks_only_while_it_is_active():
    sampler = sampler_of_this_thread()
    sampler.tick()
    assert sampler.take() is None
    sampler.active = True
    sampler.tick()
    sampler.tick()
    sampler.pause()
    sampler.tick()
    seen = sampler.take()
    assert (seen.samples, seen.states.total(), seen.functions.total()) == (2, 2, 2)
    assert sampler.take() is None


def test_a_sampler_does_not_look_while_the_thread_is_elsewhere():
    waiting = [True]
    ids = threading.get_native_id(), threading.get_ident()
    sampler = StackSampler(*ids, clock=FakeClock(), elsewhere=lambda: waiting[0])
    sampler.stack_samples = ThreadStacks(*ids)
    sampler.active = True
    sampler.tick()
    assert sampler.take() is None
    waiting[0] = False
    sampler.tick()
    assert sampler.take().samples == 1


def test_a_sampler_hands_out_what_it_saw_once_per_window():
    clock, out = FakeClock(), []
    sampler = sampler_of_this_thread(out.append, clock)
    sampler.active = True
    for _ in range(8):
        clock.advance(WINDOW_S / 4)
        sampler.tick()
    assert [seen.samples for seen in out] == [4, 4]


def test_a_sampler_with_nothing_to_see_gives_up_its_thread():
    clock = FakeClock()
    sampler = sampler_of_this_thread(clock=clock)
    sampler.active = True
    assert sampler.tick()
    sampler.pause()
    clock.advance(IDLE_S)
    assert not sampler.tick()


def sampler_threads():
    return [thread for thread in threading.enumerate() if thread.name == "penstock-whereabouts"]


def test_the_thread_exists_from_the_first_resume_until_stopped():
    before = sampler_threads()
    sampler = StackSampler(threading.get_native_id(), threading.get_ident())
    assert sampler_threads() == before
    sampler.resume()
    (thread,) = set(sampler_threads()) - set(before)
    deadline = time.monotonic() + 10
    while (seen := sampler.take()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen.samples >= 1
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
