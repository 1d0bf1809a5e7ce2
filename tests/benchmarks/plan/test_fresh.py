"""A function in a fresh process: its answer, its error, its death."""

import os
import sys
import time

import pytest
from benchmarks.plan.fresh import fresh

from penstock.errors import PenstockError


def test_each_call_has_a_process_of_its_own_with_torch_in_it():
    assert fresh(eval, "'torch' in __import__('sys').modules")
    assert len({os.getpid(), fresh(os.getpid), fresh(os.getpid)}) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="cores are chosen on Linux only")
def test_it_gets_no_more_than_two_cores():
    assert fresh(eval, "len(__import__('os').sched_getaffinity(0))") <= 2


def test_what_it_raises_is_told_with_what_was_asked():
    with pytest.raises(PenstockError, match=r"int\('seven',\): ValueError: invalid literal"):
        fresh(int, "seven")


def test_a_process_that_dies_is_an_error():
    with pytest.raises(PenstockError, match="ended without an answer"):
        fresh(os._exit, 3)


def test_a_process_that_takes_too_long_is_ended():
    with pytest.raises(PenstockError, match="no answer in 0 s"):
        fresh(time.sleep, 60, timeout_s=0.1)
