"""Calls of a function in a fresh process: results, errors, the end of the process, and the timeout."""

import os
import sys
import time

import pytest
from benchmarks.plan.fresh import fresh

from penstock.errors import PenstockError


def test_each_call_runs_in_a_new_process_that_has_torch_imported():
    assert fresh(eval, "'torch' in __import__('sys').modules")
    assert len({os.getpid(), fresh(os.getpid), fresh(os.getpid)}) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="affinities exist on Linux only")
def test_the_process_may_use_at_most_two_cores():
    assert fresh(eval, "len(__import__('os').sched_getaffinity(0))") <= 2


def test_an_error_names_the_call_and_the_exception():
    with pytest.raises(PenstockError, match=r"int\('seven',\): ValueError: invalid literal"):
        fresh(int, "seven")


def test_a_process_that_ends_without_a_result_is_an_error():
    with pytest.raises(PenstockError, match="ended without an answer"):
        fresh(os._exit, 3)


def test_a_process_that_takes_too_long_is_ended():
    with pytest.raises(PenstockError, match="no answer in 0 s"):
        fresh(time.sleep, 60, timeout_s=0.1)
