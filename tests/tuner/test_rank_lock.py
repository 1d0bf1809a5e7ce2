"""Ranks of one machine that tune: who measures, on what, and who takes it over."""

import logging
import os
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tests.tuner.test_saved_results import FOUND
from torch.utils.data import TensorDataset

from penstock.core.cores import usable_cores
from penstock.tuner import rank_lock as turns
from penstock.tuner import saved_results as memo
from penstock.tuner.rank_lock import load_shared, own_cores, store_shared
from penstock.tuner.tune import tune

KEY = memo.key_of([1], {"batch_size": 8})
SHORT = replace(FOUND, complete=False)
OTHER = replace(FOUND, samples_s=99.0)


@pytest.fixture
def as_rank(monkeypatch):
    """From here on this process is that rank of two, which share whoever started them."""
    counts = {0: Counter(), 1: Counter()}

    def be(rank):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        monkeypatch.setattr(turns, "_asked", counts[rank])

    return be


@pytest.mark.parametrize("found", [FOUND, SHORT], ids=["complete", "cut short"])
@pytest.mark.parametrize("refresh", [False, True])
def test_what_another_rank_has_found_is_taken(as_rank, found, refresh):
    as_rank(0)
    assert load_shared(KEY, refresh) is None
    store_shared(KEY, found)
    as_rank(1)
    assert load_shared(KEY, refresh) == found


def test_a_rank_that_is_behind_has_the_same_answers_to_the_same_questions(as_rank):
    as_rank(0)
    store_shared(KEY, FOUND)
    assert load_shared(KEY, refresh=True) is None
    store_shared(KEY, OTHER)
    as_rank(1)
    assert [load_shared(KEY, refresh=False), load_shared(KEY, refresh=True)] == [FOUND, OTHER]
    assert load_shared(KEY, refresh=True) is None


def test_what_an_earlier_run_has_found_is_the_same_for_all_ranks(as_rank):
    memo.store(KEY, FOUND)
    as_rank(0)
    assert load_shared(KEY, refresh=False) == FOUND
    store_shared(KEY, OTHER)  # measured anew, before the other rank has asked at all
    as_rank(1)
    assert [load_shared(KEY, refresh=False), load_shared(KEY, refresh=True)] == [FOUND, OTHER]


def test_another_run_measures_for_itself(as_rank, monkeypatch):
    as_rank(0)
    store_shared(KEY, SHORT)
    as_rank(1)
    monkeypatch.setattr(turns.os, "getppid", os.getpid)
    assert load_shared(KEY, refresh=False) is None


def test_a_process_alone_measures_anew_when_asked_and_keeps_nothing_that_was_cut_short():
    store_shared(KEY, SHORT)
    assert load_shared(KEY, refresh=False) is None
    store_shared(KEY, FOUND)
    assert load_shared(KEY, refresh=True) is None
    assert load_shared(KEY, refresh=False) == FOUND


def test_what_ranks_told_each_other_does_not_pile_up(as_rank, private_cache):
    as_rank(0)
    store_shared(KEY, FOUND)
    (old,) = (private_cache / "tune-ranks").iterdir()
    os.utime(old, (0, 0))
    store_shared(KEY, FOUND)
    assert not old.exists()
    assert len(list((private_cache / "tune-ranks").iterdir())) == 1


def test_ranks_that_cannot_keep_anything_are_told(as_rank, monkeypatch, tmp_path, caplog):
    as_rank(0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    store_shared(KEY, FOUND)
    assert "every rank measures for itself" in caplog.text


@pytest.mark.skipif(usable_cores() < 2, reason="one core cannot be shared out")
def test_a_rank_measures_on_its_share_of_the_cores(as_rank):
    as_rank(1)
    before = os.sched_getaffinity(0)
    with own_cores():
        inside = os.sched_getaffinity(0)
    assert len(inside) == len(before) // 2
    assert inside < before
    assert os.sched_getaffinity(0) == before


def test_a_process_alone_measures_on_all_of_them():
    before = os.sched_getaffinity(0)
    with own_cores():
        assert os.sched_getaffinity(0) == before


def test_a_step_is_warned_not_to_wait_for_other_ranks(as_rank, caplog):
    as_rank(0)
    caplog.set_level(logging.WARNING)
    tune(TensorDataset(torch.arange(400)), batch_size=4, step=lambda batch: None, seconds=1.0)
    assert "no collective" in caplog.text
