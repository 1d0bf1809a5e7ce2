"""The next epoch is begun before it is requested, and discarded if another one is requested."""

from itertools import islice

import pytest
from tests.support.loader_helpers import keys_of
from tests.support.waiting import wait_until

import penstock
from penstock.engine.engine import Engine
from penstock.errors import StorageError
from penstock.testing import IMAGENET, make_shards

SAMPLES, BATCH = 96, 8
FIELDS = {"label": penstock.Label(".cls")}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("shards"), IMAGENET, samples=SAMPLES, shards=3, scale=0.05)


@pytest.fixture
def loader(make_loader, shards):
    """Make loaders whose reads are counted: threads decode, and all bytes are read into the arena."""

    def make(**settings):
        defaults = {"batch_size": BATCH, "shuffle": True, "seed": 5, "executor": "thread", "page_cache": False}
        return make_loader(shards, FIELDS, **{**defaults, **settings})

    return make


def expected(loader, epoch):
    """Return the keys of that epoch, from a loader that begins with it."""
    reference = loader()
    reference.set_epoch(epoch)
    return keys_of(reference)


def batches_made(loader):
    return loader.stats().engine.batches


def wait_for_the_third_epoch(loader):
    wait_until(lambda: batches_made(loader) > 2 * SAMPLES // BATCH, "a batch of an epoch that was not requested")


def run_to_the_last_batch_of_the_second_epoch(loader):
    """Return the iterator at that batch, when the engine has begun the third epoch."""
    keys_of(loader)
    iterator = iter(loader)
    batches = [*islice(iterator, SAMPLES // BATCH)]
    assert len(batches) == SAMPLES // BATCH
    wait_for_the_third_epoch(loader)
    return iterator


def test_at_the_last_batch_the_next_epoch_is_made(loader):
    three = loader()
    iterator = run_to_the_last_batch_of_the_second_epoch(three)
    assert next(iterator, None) is None
    assert three.epoch == 2
    assert keys_of(three) == expected(loader, 2)
    assert keys_of(three) == expected(loader, 3)


def test_leaving_an_epoch_at_its_last_batch_keeps_the_epoch_that_was_begun(loader):
    left = loader()
    keys_of(left)
    for number, _ in enumerate(left, 1):
        if number == SAMPLES // BATCH:
            break
    wait_for_the_third_epoch(left)
    engine = left._engine
    assert keys_of(left) == expected(loader, 2)
    assert left._engine is engine


def test_after_a_single_epoch_no_other_is_begun(loader, monkeypatch):
    once, begun = loader(), []
    begin = Engine.begin
    monkeypatch.setattr(Engine, "begin", lambda self, epoch: begun.append(epoch) or begin(self, epoch))
    assert len(keys_of(once)) == SAMPLES
    assert len(begun) == 1


def test_after_a_wrong_prediction_no_epoch_is_predicted_any_more(loader):
    other = loader()
    iterator = run_to_the_last_batch_of_the_second_epoch(other)
    other.set_epoch(7)
    assert next(iterator, None) is None
    assert keys_of(other) == expected(loader, 7)
    batches = batches_made(other)
    assert keys_of(other) == expected(loader, 8)
    assert batches_made(other) == batches + SAMPLES // BATCH


def test_an_epoch_that_is_set_during_an_epoch_is_begun_next(loader):
    named = loader()
    keys_of(named)
    iterator = iter(named)
    batches = [next(iterator)]
    named.set_epoch(4)
    batches += iterator
    wait_for_the_third_epoch(named)
    assert keys_of(named) == expected(loader, 4)
    assert named.epoch == 5


def test_a_state_is_resumed_at_its_position(loader):
    resumed, early = loader(), loader()
    assert len([*islice(early, 3)]) == 3
    run_to_the_last_batch_of_the_second_epoch(resumed)
    resumed.load_state_dict(early.state_dict())
    assert keys_of(resumed) == expected(loader, 0)[3 * BATCH :]


def test_the_state_after_an_epoch_is_the_start_of_the_next_one(loader):
    done = loader()
    iterator = run_to_the_last_batch_of_the_second_epoch(done)
    assert next(iterator, None) is None
    fresh = loader()
    fresh.load_state_dict(done.state_dict())
    assert keys_of(fresh) == expected(loader, 2)


def test_closing_between_two_epochs_changes_nothing(loader):
    closed = loader()
    iterator = run_to_the_last_batch_of_the_second_epoch(closed)
    assert next(iterator, None) is None
    closed.close()
    assert keys_of(closed) == expected(loader, 2)


def test_an_epoch_that_failed_before_it_was_requested_is_tried_again(loader, monkeypatch):
    failing = loader()
    keys_of(failing)
    iterator = iter(failing)
    batches = [next(iterator)]
    block_source = failing._source.block_source
    monkeypatch.setattr(
        failing._source,
        "begin_epoch",
        _then(failing._source.begin_epoch, lambda: monkeypatch.setattr(*_broken(block_source))),
    )
    batches += iterator
    wait_until(lambda: failing._engine.failed, "the engine to fail")
    assert len(keys_of(batches)) == SAMPLES
    with pytest.raises(StorageError, match="gone"):
        keys_of(failing)
    monkeypatch.undo()
    failing.set_epoch(2)
    assert keys_of(failing) == expected(loader, 2)


def _broken(block_source):
    def read_block(block, memory):
        raise StorageError("the disk is gone", stage="read")

    return block_source, "read_block", read_block


def _then(begin_epoch, action):
    def begin_and_act(*arguments):
        epoch = begin_epoch(*arguments)
        action()
        return epoch

    return begin_and_act


def test_an_error_of_the_next_epoch_is_raised_when_it_is_requested(loader, monkeypatch):
    gone = loader()
    keys_of(gone)
    iterator = iter(gone)
    batches = [next(iterator)]

    def begin_epoch(epoch, position, order):
        raise StorageError("a shard is gone", stage="read")

    monkeypatch.setattr(gone._source, "begin_epoch", begin_epoch)
    batches += iterator
    assert len(keys_of(batches)) == SAMPLES
    with pytest.raises(StorageError, match="gone"):
        keys_of(gone)


@pytest.mark.parametrize("order", ["sampler", "batch_sampler"])
def test_a_sampler_is_not_iterated_before_its_epoch(make_loader, shards, order):
    iterated = []

    class Sampler:
        def __iter__(self):
            iterated.append(None)
            numbers = range(SAMPLES)
            return iter(
                numbers if order == "sampler" else [numbers[first : first + BATCH] for first in numbers[::BATCH]]
            )

        def __len__(self):
            return SAMPLES if order == "sampler" else SAMPLES // BATCH

    sampled = make_loader(shards, FIELDS, BATCH if order == "sampler" else None, **{order: Sampler()})
    for epochs in range(1, 4):
        assert len(keys_of(sampled)) == SAMPLES
        assert len(iterated) == epochs
