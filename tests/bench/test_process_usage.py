import subprocess
import sys
from contextlib import contextmanager

import pytest

from penstock.bench.process_usage import MEMORY_KIND, MemoryPeak, cpu_seconds, tree_memory_bytes

MIB = 1 << 20
BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
HOLD = "print('ready', flush=True); input()"


@contextmanager
def child(code):
    """Run `code` until it prints "ready", and keep the process there."""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.write(b"\n")


def test_cpu_of_a_child_that_has_ended_is_counted():
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert cpu_seconds() - before >= 0.3


def test_cpu_of_a_child_that_still_runs_is_counted():
    before = cpu_seconds()
    with child(BURN + HOLD):
        assert cpu_seconds() - before >= 0.29  # the system counts in ticks of 10 ms


def test_memory_of_children_is_counted():
    before = tree_memory_bytes()
    with child(f"held = b'x' * {64 * MIB}; " + HOLD):
        assert tree_memory_bytes() - before >= 60 * MIB


SHARE = f"""
import mmap, os, signal
shared = mmap.mmap(-1, {64 * MIB})
ours, theirs = os.pipe()
pid = os.fork()
if pid == 0:
    shared[::4096] = b"x" * ({64 * MIB} // 4096)
    os.write(theirs, b"!")
    signal.pause()
os.read(ours, 1)
touched = len(shared[::4096])
print("ready", flush=True)
input()
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
"""


@pytest.mark.skipif(MEMORY_KIND != "pss", reason="only PSS counts shared pages once")
def test_memory_that_two_processes_share_is_counted_once():
    before = tree_memory_bytes()
    with child(SHARE):
        assert 60 * MIB <= tree_memory_bytes() - before < 110 * MIB


# The allocations are large, since the share of common libraries changes when other processes start and end.


def test_the_peak_includes_memory_held_at_the_end():
    before = tree_memory_bytes()
    with MemoryPeak() as memory:
        held = b"x" * (256 * MIB)
    assert memory.peak_bytes - before >= 192 * MIB
    assert len(held) == 256 * MIB


def test_the_peak_includes_memory_that_was_freed():
    before = tree_memory_bytes()
    with MemoryPeak() as memory:
        held = b"x" * (256 * MIB)
        for _ in range(10_000):  # until the sampling thread has taken a sample
            if memory.peak_bytes - before >= 192 * MIB:
                break
            assert tree_memory_bytes() - before < 2000 * MIB
        del held
    assert memory.peak_bytes - before >= 192 * MIB
    assert memory.own_cpu_s > 0
