"""A number that workers read while it is turned."""

import os
import pickle
import subprocess
import sys

import pytest

from penstock.data.fields.shared_fraction import SharedFraction

READER = """
import pickle, sys
dial = pickle.load(sys.stdin.buffer.raw)
print(dial.value, flush=True)
sys.stdin.buffer.raw.read(1)
print(dial.value, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="workers keep what they were sent")
def test_another_process_sees_it_turned():
    gpu_fraction = SharedFraction(0.25)
    with subprocess.Popen(
        [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as reader:
        reader.stdin.write(pickle.dumps(gpu_fraction))
        assert reader.stdout.readline() == b"0.25\n"
        gpu_fraction.value = 0.75
        reader.stdin.write(b"!")
        assert reader.stdout.readline() == b"0.75\n"


def test_here_it_is_a_number():
    gpu_fraction = SharedFraction(0.5)
    gpu_fraction.value = 0.125
    assert gpu_fraction.value == 0.125


def test_one_whose_owner_is_gone_stays_as_it_was_sent():
    sent = pickle.dumps(SharedFraction(0.5))
    assert pickle.loads(sent).value == 0.5


def test_a_descriptor_that_became_another_file_is_not_taken_for_it(tmp_path):
    state = SharedFraction(0.5).__getstate__()
    with open(tmp_path / "other", "wb") as other:
        other.write(bytes(64))
        other.flush()
        gpu_fraction = SharedFraction.__new__(SharedFraction)
        gpu_fraction.__setstate__((f"/proc/{os.getpid()}/fd/{other.fileno()}", state[1]))
    assert gpu_fraction.value == 0.5


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors cannot be counted")
def test_it_leaves_no_descriptor_behind():
    before = len(os.listdir("/proc/self/fd"))
    gpu_fraction = SharedFraction(0.5)
    pickle.dumps(gpu_fraction)
    pickle.dumps(gpu_fraction)
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the memory's own, and its mapping's
    del gpu_fraction
    assert len(os.listdir("/proc/self/fd")) == before
