"""Ranks of one machine that tune: one measures on its share of the cores, and the others use its result."""

import logging
import os
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tests.tuner.test_saved_results import FOUND
from torch.utils.data import TensorDataset

from penstock.core.cores import usable_cores
from penstock.tuner import rank_lock
from penstock.tuner.rank_lock import load_shared, restrict_to_rank_cores, store_shared
from penstock.tuner.saved_results import store_findings, tuning_key
from penstock.tuner.tune import tune

KEY = tuning_key([1], {"batch_size": 8})
SHORT = replace(FOUND, complete=False)
OTHER = replace(FOUND, samples_s=99.0)


@pytest.fixture
def as_rank(monkeypatch):
    """Return a function after which this process is that rank of two with a common launcher."""
    counts = {0: Counter(), 1: Counter()}

    def become(rank):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        monkeypatch.setattr(rank_lock, "_request_counts", counts[rank])

    return become


@pytest.mark.parametrize("found", [FOUND, SHORT], ids=["complete", "cut short"])
@pytest.mark.parametrize("refresh", [False, True])
def test_result_of_another_rank_is_used(as_rank, found, refresh):
    as_rank(0)
    assert load_shared(KEY, refresh) is None
    store_shared(KEY, found)
    as_rank(1)
    assert load_shared(KEY, refresh) == found


def test_rank_that_is_behind_gets_the_same_results_in_the_same_order(as_rank):
    as_rank(0)
    store_shared(KEY, FOUND)
    assert load_shared(KEY, refresh=True) is None
    store_shared(KEY, OTHER)
    as_rank(1)
    assert [load_shared(KEY, refresh=False), load_shared(KEY, refresh=True)] == [FOUND, OTHER]
    assert load_shared(KEY, refresh=True) is None


def test_result_of_an_earlier_run_is_the_same_for_all_ranks(as_rank):
    store_findings(KEY, FOUND)
    as_rank(0)
    assert load_shared(KEY, refresh=False) == FOUND
    store_shared(KEY, OTHER)  # measured anew, before the other rank has made its first request
    as_rank(1)
    assert [load_shared(KEY, refresh=False), load_shared(KEY, refresh=True)] == [FOUND, OTHER]


def test_another_run_does_not_use_shared_results(as_rank, monkeypatch):
    as_rank(0)
    store_shared(KEY, SHORT)
    as_rank(1)
    monkeypatch.setattr(rank_lock.os, "getppid", os.getpid)
    assert load_shared(KEY, refresh=False) is None


def test_single_process_measures_anew_and_stores_only_complete_results():
    store_shared(KEY, SHORT)
    assert load_shared(KEY, refresh=False) is None
    store_shared(KEY, FOUND)
    assert load_shared(KEY, refresh=True) is None
    assert load_shared(KEY, refresh=False) == FOUND


def test_old_shared_results_are_deleted(as_rank, private_cache):
    as_rank(0)
    store_shared(KEY, FOUND)
    (old,) = (private_cache / "tune-ranks").iterdir()
    os.utime(old, (0, 0))
    store_shared(KEY, FOUND)
    assert not old.exists()
    assert len(list((private_cache / "tune-ranks").iterdir())) == 1


def test_cache_that_cannot_be_written_is_logged(as_rank, monkeypatch, tmp_path, caplog):
    as_rank(0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    store_shared(KEY, FOUND)
    assert "every rank measures for itself" in caplog.text


@pytest.mark.skipif(usable_cores() < 2, reason="one core cannot be divided")
def test_rank_measures_on_its_share_of_the_cores(as_rank):
    as_rank(1)
    before = os.sched_getaffinity(0)
    with restrict_to_rank_cores():
        inside = os.sched_getaffinity(0)
    assert len(inside) == len(before) // 2
    assert inside < before
    assert os.sched_getaffinity(0) == before


def test_single_process_measures_on_all_cores():
    before = os.sched_getaffinity(0)
    with restrict_to_rank_cores():
        assert os.sched_getaffinity(0) == before


def test_step_on_several_ranks_is_warned_about_collectives(as_rank, caplog):
    as_rank(0)
    caplog.set_level(logging.WARNING)
    tune(TensorDataset(torch.arange(400)), batch_size=4, step=lambda batch: None, seconds=1.0)
    assert "no collective" in caplog.text
