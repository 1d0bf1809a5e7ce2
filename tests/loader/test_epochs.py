"""The next pass is made before it is asked for, and never seen by whoever asks for another."""

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
    """In threads, which read from the arena: what is read is counted."""

    def make(**settings):
        given = {"batch_size": BATCH, "shuffle": True, "seed": 5, "executor": "thread", "page_cache": False}
        return make_loader(shards, FIELDS, **{**given, **settings})

    return make


def expected(loader, epoch):
    """The keys of that epoch, by a loader that is asked for it first."""
    made = loader()
    made.set_epoch(epoch)
    return keys_of(made)


def made(loader):
    return loader.stats().engine.batches


def wait_for_the_third_pass(loader):
    wait_until(lambda: made(loader) > 2 * SAMPLES // BATCH, "a batch of a pass that nobody has asked for")


def at_the_last_batch_of_its_second_pass(loader):
    """A pass that is held there, when the engine has begun with the third."""
    keys_of(loader)
    passing = iter(loader)
    batches = [*islice(passing, SAMPLES // BATCH)]
    assert len(batches) == SAMPLES // BATCH
    wait_for_the_third_pass(loader)
    return passing


def test_while_the_loop_is_at_its_last_batch_the_next_pass_is_made(loader):
    of_three = loader()
    passing = at_the_last_batch_of_its_second_pass(of_three)
    assert next(passing, None) is None
    assert of_three.epoch == 2
    assert keys_of(of_three) == expected(loader, 2)
    assert keys_of(of_three) == expected(loader, 3)


def test_a_pass_that_is_left_at_its_last_batch_is_followed_by_the_one_that_was_begun(loader):
    left = loader()
    keys_of(left)
    for number, _ in enumerate(left, 1):
        if number == SAMPLES // BATCH:
            break
    wait_for_the_third_pass(left)
    engine = left._engine
    assert keys_of(left) == expected(loader, 2)
    assert left._engine is engine


def test_after_a_single_pass_nothing_more_is_begun(loader, monkeypatch):
    once, begun = loader(), []
    begin = Engine.begin
    monkeypatch.setattr(Engine, "begin", lambda self, epoch: begun.append(epoch) or begin(self, epoch))
    assert len(keys_of(once)) == SAMPLES
    assert len(begun) == 1


def test_another_epoch_is_that_epoch_and_nobody_guesses_any_more(loader):
    other = loader()
    passing = at_the_last_batch_of_its_second_pass(other)
    other.set_epoch(7)
    assert next(passing, None) is None
    assert keys_of(other) == expected(loader, 7)
    batches = made(other)
    assert keys_of(other) == expected(loader, 8)
    assert made(other) == batches + SAMPLES // BATCH


def test_an_epoch_that_was_named_during_the_pass_is_the_one_that_is_begun(loader):
    named = loader()
    keys_of(named)
    passing = iter(named)
    batches = [next(passing)]
    named.set_epoch(4)
    batches += passing
    wait_for_the_third_pass(named)
    assert keys_of(named) == expected(loader, 4)
    assert named.epoch == 5


def test_a_state_is_resumed_where_it_was(loader):
    resumed, early = loader(), loader()
    assert len([*islice(early, 3)]) == 3
    at_the_last_batch_of_its_second_pass(resumed)
    resumed.load_state_dict(early.state_dict())
    assert keys_of(resumed) == expected(loader, 0)[3 * BATCH :]


def test_the_state_before_the_next_pass_is_asked_for_is_its_start(loader):
    done = loader()
    passing = at_the_last_batch_of_its_second_pass(done)
    assert next(passing, None) is None
    fresh = loader()
    fresh.load_state_dict(done.state_dict())
    assert keys_of(fresh) == expected(loader, 2)


def test_closing_between_two_passes_changes_nothing(loader):
    closed = loader()
    passing = at_the_last_batch_of_its_second_pass(closed)
    assert next(passing, None) is None
    closed.close()
    assert keys_of(closed) == expected(loader, 2)


def test_what_failed_before_it_was_asked_for_is_tried_again(loader, monkeypatch):
    failing = loader()
    keys_of(failing)
    passing = iter(failing)
    batches = [next(passing)]
    block_source = failing._source.block_source
    monkeypatch.setattr(
        failing._source,
        "begin_epoch",
        _then(failing._source.begin_epoch, lambda: monkeypatch.setattr(*_broken(block_source))),
    )
    batches += passing
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


def _then(ask, deed):
    def share(*asked):
        found = ask(*asked)
        deed()
        return found

    return share


def test_shards_that_cannot_be_looked_at_any_more_are_the_next_pass_s_business(loader, monkeypatch):
    gone = loader()
    keys_of(gone)
    passing = iter(gone)
    batches = [next(passing)]

    def share(epoch, position):
        raise StorageError("a shard is gone", stage="read")

    monkeypatch.setattr(gone._source, "begin_epoch", share)
    batches += passing
    assert len(keys_of(batches)) == SAMPLES
    with pytest.raises(StorageError, match="gone"):
        keys_of(gone)


@pytest.mark.parametrize("order", ["sampler", "batch_sampler"])
def test_a_sampler_is_not_asked_before_its_pass(make_loader, shards, order):
    asked = []

    class Sampler:
        def __iter__(self):
            asked.append(None)
            numbers = range(SAMPLES)
            return iter(numbers if order == "sampler" else [numbers[at : at + BATCH] for at in numbers[::BATCH]])

        def __len__(self):
            return SAMPLES if order == "sampler" else SAMPLES // BATCH

    picked = make_loader(shards, FIELDS, BATCH if order == "sampler" else None, **{order: Sampler()})
    for passes in range(1, 4):
        assert len(keys_of(picked)) == SAMPLES
        assert len(asked) == passes
