"""The watcher of torch's DataLoader, with real loaders and real worker processes."""

import multiprocessing
import time

import pytest
import torch
from tests.support import watcher_helpers
from torch.utils.data import DataLoader

from penstock.recording.format import EventLine, FetchLine, StackSamplesLine
from penstock.testing import FakeClock
from penstock.watcher.dataloader import main_process
from penstock.watcher.dataloader.worker_files import WorkerFiles
from penstock.watcher.loader_views import UNKNOWN_STATE, LoaderState, WaitParts

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def worker_files():
    worker_files = WorkerFiles()
    yield worker_files
    worker_files.close()


class WatchedLoader:
    """Iterates over a loader with watched iterators, and keeps the lines that its workers wrote."""

    def __init__(self, loader, worker_files):
        self.loader = loader
        self.worker_files = worker_files
        self.clock_start = time.perf_counter()
        self.epochs = 0
        self.lines = []

    def begin_epoch(self):
        iterator = main_process.make_iterator(self.loader, 3, self.epochs, self.worker_files, self.clock_start)
        self.epochs += 1
        return iterator

    def run_epoch(self):
        batches = list(self.begin_epoch())
        if not getattr(self.loader, "persistent_workers", False):
            self.lines += self.worker_files.drain(last=True)
        return batches

    def fetches(self, count):
        """Return the fetch lines when there are this many: a worker writes them only after it has sent the batch."""
        deadline = time.monotonic() + 30
        while True:
            self.lines += self.worker_files.drain()
            found = [line for line in self.lines if isinstance(line, FetchLine)]
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.01)


def as_lists(batches):
    return [[part.tolist() for part in batch] if isinstance(batch, list) else batch.tolist() for batch in batches]


def shuffled_loader(**settings):
    """Return a loader of six batches in a shuffled order that is always the same."""
    settings = {"num_workers": 2, "batch_size": 4, "shuffle": True, **settings}
    return DataLoader(watcher_helpers.Numbers(), generator=torch.Generator().manual_seed(7), **settings)


# -- batches and fetch lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_batches_order_and_random_numbers_are_those_of_an_unwatched_loader(method, worker_files):
    settings = {"num_workers": 1, "worker_init_fn": watcher_helpers.seeded_init}
    expected = as_lists(shuffled_loader(**settings, multiprocessing_context="fork"))
    watched = WatchedLoader(shuffled_loader(**settings, multiprocessing_context=method), worker_files)
    assert as_lists(watched.run_epoch()) == expected
    assert [fetch.batch for fetch in watched.fetches(6)] == list(range(6))


def test_without_workers_batches_and_random_numbers_are_those_of_an_unwatched_loader(worker_files):
    torch.manual_seed(1)
    expected = as_lists(shuffled_loader(num_workers=0))
    torch.manual_seed(1)
    watched = WatchedLoader(shuffled_loader(num_workers=0), worker_files)
    assert as_lists(watched.run_epoch()) == expected
    fetches = [(fetch.batch, fetch.worker, fetch.samples) for fetch in watched.lines]
    assert fetches == [(batch, -1, 4) for batch in range(6)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fetch_line_counts_samples_reads_and_opened_files(workers, worker_files, tmp_path):
    (tmp_path / "file").write_bytes(bytes(50))
    loader = DataLoader(watcher_helpers.Files(tmp_path / "file"), num_workers=workers, batch_size=4)
    watched = WatchedLoader(loader, worker_files)
    watched.run_epoch()
    first, second = sorted(watched.fetches(2), key=lambda fetch: fetch.batch)
    for fetch in (first, second):
        assert (fetch.loader, fetch.samples, fetch.read_bytes, fetch.reads) == (3, 4, 200, 4)
        assert fetch.opens == (4 if workers else 0)  # the main process has no audit hook, which could not be removed
        assert 0 < fetch.slowest_s < fetch.fetch_s
        assert 0 < fetch.collate_s < fetch.fetch_s
        assert fetch.cpu_s > 0
    assert first.at_s + first.fetch_s <= second.at_s or workers


def test_each_worker_reports_how_long_its_start_took(worker_files):
    watched = WatchedLoader(shuffled_loader(), worker_files)
    watched.run_epoch()
    watched.fetches(6)
    events = [line for line in watched.lines if isinstance(line, EventLine)]
    assert [(event.what, event.loader, event.worker) for event in events] == [
        ("worker_started", 3, 0),
        ("worker_started", 3, 1),
    ]
    assert all(0 < event.seconds <= event.at_s for event in events)


@pytest.mark.parametrize("size", [12, 16])
def test_batches_of_persistent_workers_are_numbered_from_0_in_every_epoch(size, worker_files):
    loader = DataLoader(watcher_helpers.Numbers(size), 4, num_workers=2, persistent_workers=True)
    watched = WatchedLoader(loader, worker_files)
    for _ in range(3):
        watched.run_epoch()
    found = {(fetch.epoch, fetch.batch, fetch.worker) for fetch in watched.fetches(3 * size // 4)}
    assert found == {(epoch, batch, batch % 2) for epoch in range(3) for batch in range(size // 4)}


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_of_uneven_shards_are_numbered_in_the_order_of_delivery(persistent, worker_files):
    dataset = watcher_helpers.Shards([7, 0, 3, 1])
    watched = WatchedLoader(DataLoader(dataset, 1, num_workers=4, persistent_workers=persistent), worker_files)
    delivered = {(epoch, batch): int(worker) for epoch in range(2) for batch, worker in enumerate(watched.run_epoch())}
    found = {(fetch.epoch, fetch.batch): fetch.worker for fetch in watched.fetches(22)}
    assert found == delivered


def test_an_incomplete_last_batch_of_an_iterable_dataset_has_fewer_samples(worker_files):
    watched = WatchedLoader(DataLoader(watcher_helpers.Shards([7]), 3, num_workers=1), worker_files)
    watched.run_epoch()
    assert [fetch.samples for fetch in watched.fetches(3)] == [3, 3, 1]


def test_without_in_order_the_index_of_a_batch_is_not_known(worker_files):
    watched = WatchedLoader(shuffled_loader(in_order=False), worker_files)
    watched.run_epoch()
    assert [fetch.batch for fetch in watched.fetches(6)] == [-1] * 6


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_without_automatic_batching_is_timed(workers, worker_files):
    loader = DataLoader(watcher_helpers.Numbers(3), batch_size=None, num_workers=workers)
    watched = WatchedLoader(loader, worker_files)
    watched.run_epoch()
    assert [(fetch.samples, fetch.slowest_s > 0) for fetch in watched.fetches(3)] == [(1, True)] * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_makes_whole_batches_gets_a_plain_list_and_has_no_slowest_sample(workers, worker_files):
    watched = WatchedLoader(DataLoader(watcher_helpers.WholeBatches(8), 4, num_workers=workers), worker_files)
    watched.run_epoch()
    assert [(fetch.samples, fetch.slowest_s) for fetch in watched.fetches(2)] == [(4, 0.0)] * 2
    assert all(fetch.collate_s > 0 for fetch in watched.fetches(2))


def test_a_loader_inside_the_dataset_does_not_count_as_the_watched_one(worker_files):
    watched = WatchedLoader(DataLoader(watcher_helpers.Nested(4), 2, num_workers=1), worker_files)
    assert as_lists(watched.run_epoch()) == [[0, 6], [12, 18]]
    fetches = watched.fetches(2)
    assert [fetch.samples for fetch in fetches] == [2, 2]
    assert all(fetch.slowest_s > 2 * fetch.collate_s for fetch in fetches)


# -- errors and early ends -----------------------------------------------------------------------------------------


def error_message(iterator):
    """Return the message of the ValueError that the iterator raises."""
    with pytest.raises(ValueError) as caught:
        list(iterator)
    iterator._shutdown_workers()  # torch takes seconds to stop the workers of an iterator that is garbage-collected
    return str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        (watcher_helpers.Bad(), {}),
        (watcher_helpers.Numbers(), {"collate_fn": watcher_helpers.bad_collate}),
        (watcher_helpers.Numbers(), {"worker_init_fn": watcher_helpers.bad_init}),
        (watcher_helpers.BadShards(), {}),
    ],
)
def test_an_error_in_a_worker_has_the_same_message_and_traceback_as_unwatched(dataset, settings, worker_files):
    loader = DataLoader(dataset, 2, num_workers=1, **settings)
    expected = error_message(iter(loader))
    assert "Traceback" in expected
    assert error_message(WatchedLoader(loader, worker_files).begin_epoch()) == expected


def test_an_error_without_workers_is_raised_and_its_batch_has_no_line(worker_files):
    watched = WatchedLoader(DataLoader(watcher_helpers.Bad(), 2), worker_files)
    with pytest.raises(ValueError, match=r"^sample 5 is bad$"):
        watched.run_epoch()
    assert [fetch.batch for fetch in worker_files.drain()] == [0, 1]


def test_the_users_init_function_is_restored_even_if_the_iterator_raises(worker_files):
    loader = shuffled_loader(worker_init_fn=watcher_helpers.seeded_init)

    def refuse(loader):
        assert loader.worker_init_fn is not watcher_helpers.seeded_init
        raise RuntimeError("no workers today")

    with pytest.raises(RuntimeError, match="no workers today"):
        main_process.make_iterator(loader, 0, 0, worker_files, 0.0, make=refuse)
    assert loader.worker_init_fn is watcher_helpers.seeded_init


def test_deleting_the_iterator_in_an_epoch_ends_its_workers(worker_files):
    watched = WatchedLoader(shuffled_loader(), worker_files)
    iterator = watched.begin_epoch()
    pids = main_process.worker_pids(iterator)
    assert sorted(pids.values()) == [0, 1]
    next(iterator)
    del iterator
    assert not pids.keys() & {child.pid for child in multiprocessing.active_children()}
    assert all(fetch.batch >= 0 for fetch in watched.fetches(1))


# -- the state of the queues ---------------------------------------------------------------------------------------


def wait_until_ready(iterator, ready):
    """Return the state when this many batches are ready."""
    deadline = time.monotonic() + 30
    while (state := main_process.queue_state(iterator)).ready != ready and time.monotonic() < deadline:
        time.sleep(0.01)
    return state


def begin_with_waiting_workers(waiting, worker_files, **settings):
    """Begin an epoch with three workers, of which those in `waiting` make no batch before the returned event is set."""
    event = multiprocessing.get_context("fork").Event()
    dataset = watcher_helpers.Waiting(event, waiting)
    loader = DataLoader(dataset, 2, num_workers=3, prefetch_factor=2, **settings)
    return event, WatchedLoader(loader, worker_files).begin_epoch()


def test_the_state_names_the_worker_that_is_late_while_the_others_are_ready(worker_files):
    event, iterator = begin_with_waiting_workers({0}, worker_files)
    assert wait_until_ready(iterator, ready=4) == LoaderState(ready=4, outstanding=6, worker=0)
    event.set()
    assert [int(batch[0]) for batch in iterator] == list(range(0, 24, 2))


def test_when_all_workers_wait_no_batch_is_ready(worker_files):
    event, iterator = begin_with_waiting_workers({0, 1, 2}, worker_files)
    assert main_process.queue_state(iterator) == LoaderState(ready=0, outstanding=6, worker=0)
    event.set()
    assert wait_until_ready(iterator, ready=6) == LoaderState(ready=6, outstanding=6, worker=0)
    next(iterator)
    assert main_process.queue_state(iterator).worker == 1


def test_without_in_order_the_worker_of_the_next_batch_is_not_known(worker_files):
    event, iterator = begin_with_waiting_workers({0}, worker_files, in_order=False)
    assert wait_until_ready(iterator, ready=4).worker is None
    event.set()


def test_the_next_batch_is_not_expected_from_a_worker_that_has_ended(worker_files):
    watched = WatchedLoader(DataLoader(watcher_helpers.Shards([4, 0]), 1, num_workers=2), worker_files)
    iterator = watched.begin_epoch()
    states = {}
    for batch, _ in enumerate(iterator):
        states[batch] = main_process.queue_state(iterator)
    assert states[2].worker == 0
    assert states[2].outstanding >= states[2].ready - 1


def test_if_the_queue_cannot_be_counted_the_rest_of_the_state_is_known(worker_files, monkeypatch):
    event, iterator = begin_with_waiting_workers({0}, worker_files)

    def refuse():
        raise NotImplementedError  # as on macOS

    monkeypatch.setattr(iterator._data_queue, "qsize", refuse)
    assert main_process.queue_state(iterator) == LoaderState(ready=None, outstanding=6, worker=0)
    event.set()


def test_without_the_attributes_of_torch_nothing_is_known():
    assert main_process.queue_state(object()) == UNKNOWN_STATE
    assert main_process.worker_pids(object()) == {}
    assert main_process.take_wait_parts(object()) == WaitParts(0.0, None)


def test_without_workers_the_next_batch_comes_from_the_main_process(worker_files):
    iterator = WatchedLoader(shuffled_loader(num_workers=0), worker_files).begin_epoch()
    assert main_process.queue_state(iterator) == LoaderState(worker=-1)


def test_the_queue_counter_counts_the_batches_in_the_queue(worker_files):
    event, iterator = begin_with_waiting_workers({0}, worker_files)
    assert wait_until_ready(iterator, ready=4).ready == 4
    base, sign, read = main_process.queue_counter(iterator)
    assert base + sign * read() == 4
    event.set()
    list(iterator)
    assert base + sign * read() == 0


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "in_order": False}])
def test_there_is_no_queue_counter_without_workers_or_without_in_order(worker_files, settings):
    loader = DataLoader(list(range(4)), **settings)
    iterator = main_process.make_iterator(loader, 0, 0, worker_files, 0.0)
    assert main_process.queue_counter(iterator) is None


# -- the parts of a wait, and stack samples ------------------------------------------------------------------------


def test_taking_the_wait_parts_resets_the_time_of_the_sampler(worker_files, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(main_process.time, "perf_counter", clock.now)

    class SlowSampler:
        def __iter__(self):
            for index in range(3):
                clock.advance(2.0)
                yield [index]

    loader = DataLoader(watcher_helpers.Numbers(3), batch_sampler=SlowSampler())
    iterator = main_process.make_iterator(loader, 0, 0, worker_files, 0.0)
    next(iterator)
    next(iterator)
    assert main_process.take_wait_parts(iterator).sampler_s == 4.0
    assert main_process.take_wait_parts(iterator).sampler_s == 0.0


def test_the_idle_part_of_a_wait_is_measured_and_reset(worker_files):
    loader = DataLoader(list(range(8)), batch_size=2, num_workers=1)
    iterator = main_process.make_iterator(loader, 0, 0, worker_files, 0.0)
    main_process.take_wait_parts(iterator)
    began = time.perf_counter()
    next(iterator)
    wait_s = time.perf_counter() - began
    idle_s = main_process.take_wait_parts(iterator).idle_s
    assert 0 < idle_s <= wait_s
    assert main_process.take_wait_parts(iterator).idle_s == 0.0


def test_wait_timers_can_be_removed_and_installed_again(worker_files):
    loader = DataLoader(list(range(16)), batch_size=2, num_workers=1)
    iterator = main_process.make_iterator(loader, 0, 0, worker_files, 0.0)
    next(iterator)
    assert main_process.take_wait_parts(iterator).sampler_s > 0
    main_process.remove_wait_timers(iterator)
    main_process.remove_wait_timers(iterator)
    next(iterator)
    assert main_process.take_wait_parts(iterator) == WaitParts(0.0, None)
    main_process.install_wait_timers(iterator)
    main_process.install_wait_timers(iterator)
    batches = [next(iterator).tolist()]
    parts = main_process.take_wait_parts(iterator)
    assert parts.sampler_s > 0
    assert parts.idle_s is not None
    assert batches + [batch.tolist() for batch in iterator] == [[first, first + 1] for first in range(4, 16, 2)]


def test_stack_samples_of_a_worker_that_waits_for_a_lock_have_that_state(worker_files):
    event, iterator = begin_with_waiting_workers({0, 1, 2}, worker_files)
    samples = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not samples:
        samples = [line for line in worker_files.drain() if isinstance(line, StackSamplesLine)]
        time.sleep(0.05)
    event.set()
    assert samples[0].loader == 3
    assert samples[0].states.keys() == {"lock"}
    assert all(name.startswith("multiprocessing.") for name in samples[0].functions)
    assert len(list(iterator)) == 12
