"""Memory that processes share."""

import gc
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from penstock.engine.shared_memory import SharedMemory


def test_another_process_reads_and_writes_the_same_bytes(leaves_nothing):
    memory = SharedMemory.create(8192, "test")
    memory.view[:5] = b"hello"
    program = (
        "from penstock.engine.shared_memory import SharedMemory\n"
        f"memory = SharedMemory({memory.fd}, 8192)\n"
        "assert bytes(memory.view[:5]) == b'hello'\n"
        "memory.view[4096:4101] = b'world'\n"
    )
    subprocess.run([sys.executable, "-c", program], pass_fds=[memory.fd], check=True)
    assert bytes(memory.view[4096:4101]) == b"world"
    memory.close()


def test_closing_twice_leaves_nothing(leaves_nothing):
    memory = SharedMemory.create(4096, "test")
    memory.close()
    memory.close()
    assert memory.fd == -1


@pytest.mark.parametrize(
    "make", [lambda view: np.ndarray((8192,), np.uint8, view), lambda view: np.frombuffer(view, np.uint8)]
)
def test_an_array_stays_readable_after_closing(make, leaves_nothing):
    memory = SharedMemory.create(8192, "test")
    array = make(memory.view)
    array[:] = 7
    memory.close()
    gc.collect()
    assert int(array.sum()) == 7 * 8192  # this would be a segmentation fault if the mapping were closed
    del array, memory
    gc.collect()


def test_a_size_that_is_too_large_leaves_no_descriptor(leaves_nothing):
    with pytest.raises((OSError, OverflowError, ValueError)):
        SharedMemory.create(1 << 62, "test")


def test_without_memfd_an_unlinked_file_is_used(monkeypatch, leaves_nothing):
    monkeypatch.delattr(os, "memfd_create")
    memory = SharedMemory.create(4096, "test")
    memory.view[:3] = b"abc"
    assert os.pread(memory.fd, 3, 0) == b"abc"
    assert os.fstat(memory.fd).st_nlink == 0
    memory.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux creates pages in one call")
def test_prefaulted_memory_is_written_without_a_fault_per_page(leaves_nothing):
    pages = 2048
    memory = SharedMemory.create(pages * 4096, "test")
    memory.prefault(0, memory.size // 2)
    array = np.frombuffer(memory.view, np.uint8)

    def faults(half):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        half[::4096] = 1
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    prefaulted, fresh = faults(array[: array.size // 2]), faults(array[array.size // 2 :])
    del array
    memory.close()
    assert prefaulted < pages // 16
    assert fresh >= pages // 4


def test_prefaulting_outside_the_memory_changes_nothing(leaves_nothing):
    memory = SharedMemory.create(8192, "test")
    memory.prefault(0, -4096)
    memory.prefault(1, 100)
    assert bytes(memory.view) == bytes(8192)
    memory.close()
