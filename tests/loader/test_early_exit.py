"""Odd ways out of a pass: a fork, a device that breaks, code that wants to end the program, a word too many."""

import os
import signal
import threading
import time

import psutil
import pytest
from tests.support.loader_helpers import keys_of

import penstock
from penstock.data.device.transfer import HostTransfer
from penstock.errors import PenstockError
from penstock.options import BLOCK_BYTES
from penstock.testing import IMAGENET, make_shards

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SAMPLES = 24
FIELDS = {"label": penstock.Label(".cls")}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("shards"), IMAGENET, samples=SAMPLES, shards=2, scale=0.05)


def in_a_fork(deed):
    """Whether it goes well there, in a thread that has none of this thread's locks, before a minute is over."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        threading.Thread(target=lambda: os._exit(0 if deed() else 1)).start()
        time.sleep(3600)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_fork_is_told_whose_loader_it_is_and_can_close_it_without_harm(make_loader, shards, executor):
    loader = make_loader(shards, FIELDS, executor=executor)
    passing = iter(loader)
    batches = [next(passing)]

    def goes_on():
        try:
            next(passing)
        except PenstockError as error:
            loader.close()
            return "forked" in error.reason
        return False

    with loader._source.block_source._reader.local._lock:  # as a reader may have it when somebody forks
        assert in_a_fork(goes_on)
    batches += passing
    assert len(set(keys_of(batches))) == SAMPLES


def test_a_device_that_cannot_be_left_in_order_leaves_no_worker_behind(make_loader, shards, monkeypatch):
    def broken(_way):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    loader = make_loader(shards, FIELDS, executor="process")
    threads, children = threading.active_count(), set(psutil.Process().children())
    assert len(keys_of(loader)) == SAMPLES
    monkeypatch.setattr(HostTransfer, "close", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        loader.close()
    assert (threading.active_count(), set(psutil.Process().children())) == (threads, children)
    monkeypatch.undo()
    assert len(keys_of(loader)) == SAMPLES


def test_a_transform_that_wants_to_end_the_program_costs_its_own_sample_only(make_loader, shards):
    seen = []

    def transform(sample, _rng):
        seen.append(sample)
        if len(seen) == 6:
            raise SystemExit("enough")
        return sample

    loader = make_loader(shards, FIELDS, num_workers=1, transform=transform, on_error="skip", max_bad_fraction=1.0)
    assert len(keys_of(loader)) == SAMPLES - 1


class Quitting:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 5:
            raise SystemExit("enough")
        return index


def test_a_dataset_that_wants_to_end_the_program_costs_its_own_sample_only(make_loader):
    loader = make_loader(Quitting(), None, num_workers=1, block_bytes=BLOCK_BYTES, on_error="skip")
    assert [number for batch in loader for number in batch.tolist()] == [n for n in range(16) if n != 5]


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_batch_without_samples_is_delivered_as_such(make_loader, shards, on_error):
    picked = [[0, 1], [], [2, 3]]
    loader = make_loader(shards, FIELDS, None, batch_sampler=picked, on_error=on_error)
    assert [len(batch["label"]) for batch in loader] == [2, 0, 2]


def test_a_state_that_is_loaded_after_an_epoch_was_asked_for_is_the_last_word(make_loader, shards):
    loader = make_loader(shards, FIELDS, shuffle=True)
    passing = iter(loader)
    next(passing)
    state = loader.state_dict()
    rest = keys_of(passing)
    passing = iter(loader)
    next(passing)
    loader.set_epoch(7)
    loader.load_state_dict(state)
    passing.close()
    assert loader.state_dict() == state
    assert keys_of(loader) == rest
