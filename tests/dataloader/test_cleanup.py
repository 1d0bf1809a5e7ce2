"""A penstock.DataLoader leaves no process, thread, file or shared memory behind."""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading

import psutil
import pytest
import torch

from penstock import DataLoader
from tests.dataloader.samples import Numbers


def _held():
    """Return all that this process holds: children, threads, descriptors, and shared memory with a name."""
    gc.collect()
    multiprocessing.active_children()  # reaps those that have ended
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    named = [name for name in names if str(os.getpid()) in name or "penstock" in name]
    return (
        len(psutil.Process().children(recursive=True)),
        threading.active_count(),
        len(os.listdir("/proc/self/fd")),
        named,
    )


def _whole(loader):
    list(loader)


def _break(loader):
    for _ in loader:
        break


def _error(loader):
    with contextlib.suppress(ValueError):
        for _ in loader:
            raise ValueError


def _never_iterated(loader):
    iter(loader)


def _two_at_once(loader):
    one, other = iter(loader), iter(loader)
    next(one), next(other)


def _failing_dataset(loader):
    loader.dataset.fails = True
    with contextlib.suppress(KeyError):
        list(loader)


class Failing(Numbers):
    fails = False

    def __getitem__(self, index):
        if self.fails and index == 20:
            raise KeyError(index)
        return torch.ones(100) * index


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("use", [_whole, _break, _error, _never_iterated, _two_at_once, _failing_dataset])
def test_nothing_is_left_after(use, persistent):
    def run():
        use(DataLoader(Failing(40), batch_size=2, num_workers=2, persistent_workers=persistent))

    run()  # what is made once for the process, such as a resource tracker
    before = _held()
    run()
    run()
    assert _held() == before


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_end_when_the_loop_is_left_while_the_loader_stays(num_workers):
    loader = DataLoader(Failing(4000), batch_size=2, num_workers=num_workers)
    before = len(psutil.Process().children())
    for _ in loader:
        assert len(psutil.Process().children()) == before + num_workers
        break
    assert len(psutil.Process().children()) == before
    assert loader.state_dict()["batches"] == 1


def test_a_batch_that_is_held_outlives_its_loader():
    batch = next(iter(DataLoader(Failing(40), batch_size=4, num_workers=1)))
    gc.collect()
    assert batch[:, 0].tolist() == [0, 1, 2, 3]
    batch += 1


def test_ended_iterators_stay_ended():
    iterator = iter(DataLoader(Numbers(4), num_workers=1))
    assert len(list(iterator)) == 4
    assert list(iterator) == []


def test_a_fork_of_the_training_process_can_neither_use_nor_end_the_workers():
    loader = DataLoader(Numbers(40), batch_size=2, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            next(iterator)
        except RuntimeError:
            del iterator
            gc.collect()
            code = 0 if sum(1 for _ in loader) == 20 else 2  # an iterator of its own works
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sum(1 for _ in iterator) == 19


SCRIPT = textwrap.dedent(
    """
    import os, signal, sys, time, torch
    from penstock import DataLoader

    class Slow:
        def __len__(self): return 1000
        def __getitem__(self, index):
            time.sleep(0.01)
            return os.getpid()

    loader = DataLoader(Slow(), batch_size=2, num_workers=2, persistent_workers={persistent})
    iterator = iter(loader)
    pids = {{pid for _ in range(10) for pid in next(iterator).tolist()}}
    print(*pids, flush=True)
    {end}
    """
)
ENDS = {
    "exit": "sys.exit(5)",
    "exception": "raise ValueError('over')",
    "end of the script": "",
    "interrupt": "signal.raise_signal(signal.SIGINT)",
    "interrupt while it waits": "import threading; threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()"
    "\nfor _ in iterator: pass",
    "termination": "os.kill(os.getpid(), signal.SIGTERM)",
    "os._exit": "os._exit(7)",
}


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_workers_end_with_the_script(end, persistent):
    script = SCRIPT.format(persistent=persistent, end=ENDS[end])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids, done.stderr
    expected = {"exit": 5, "os._exit": 7, "termination": -signal.SIGTERM, "end of the script": 0}.get(end)
    assert expected is None or done.returncode == expected, done.stderr
    assert "Traceback" not in done.stderr or end in ("exception", "interrupt", "interrupt while it waits"), done.stderr
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert psutil.wait_procs(processes, timeout=30)[1] == []
