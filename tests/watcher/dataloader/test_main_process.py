"""The adapter for torch's DataLoader, against the real one."""

import multiprocessing
import time
from collections import defaultdict

import pytest
import torch
from tests.support import watcher_helpers as observing
from torch.utils.data import DataLoader

from penstock.recording.format import EventLine, FetchLine, StackSamplesLine
from penstock.testing import FakeClock
from penstock.watcher.dataloader import main_process as stopwatches
from penstock.watcher.dataloader import main_process as torchloader
from penstock.watcher.dataloader.worker_files import WorkerFiles
from penstock.watcher.loader_views import NOTHING, LoaderState, WaitParts

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def spool():
    spool = WorkerFiles()
    yield spool
    spool.close()


class Watched:
    """Passes over a loader as the watcher makes them, and what came of them."""

    def __init__(self, loader, spool):
        self.loader = loader
        self.spool = spool
        self.began = time.perf_counter()
        self.passes = 0
        self.lines = []

    def begin(self):
        iterator = torchloader.make_iterator(self.loader, 3, self.passes, self.spool, self.began)
        self.passes += 1
        return iterator

    def run(self):
        batches = list(self.begin())
        if not getattr(self.loader, "persistent_workers", False):
            self.lines += self.spool.drain(last=True)
        return batches

    def fetches(self, number):
        """Of one pass, once all of its batches are in; the last ones may be written after the loop has got them."""
        deadline = time.monotonic() + 30
        while True:
            self.lines += self.spool.drain()
            found = [line for line in self.lines if isinstance(line, FetchLine)]
            if len(found) >= number or time.monotonic() > deadline:
                return found
            time.sleep(0.01)


def plain(batches):
    return [[part.tolist() for part in batch] if isinstance(batch, list) else batch.tolist() for batch in batches]


def numbers_loader(**settings):
    settings = {"num_workers": 2, "batch_size": 4, "shuffle": True, **settings}
    return DataLoader(observing.Numbers(), generator=torch.Generator().manual_seed(7), **settings)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_batches_order_and_random_numbers_are_those_of_an_unwatched_loader(method, spool):
    settings = {"num_workers": 1, "worker_init_fn": observing.seeded_init}
    expected = plain(numbers_loader(**settings, multiprocessing_context="fork"))
    watched = Watched(numbers_loader(**settings, multiprocessing_context=method), spool)
    assert plain(watched.run()) == expected
    assert [fetch.batch for fetch in watched.fetches(6)] == list(range(6))


def test_without_workers_too_batches_and_random_numbers_are_the_same(spool):
    torch.manual_seed(1)
    expected = plain(numbers_loader(num_workers=0))
    torch.manual_seed(1)
    watched = Watched(numbers_loader(num_workers=0), spool)
    assert plain(watched.run()) == expected
    assert [(fetch.batch, fetch.worker, fetch.samples) for fetch in watched.lines] == [(at, -1, 4) for at in range(6)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fetch_tells_its_samples_reads_and_opens(workers, spool, tmp_path):
    (tmp_path / "file").write_bytes(bytes(50))
    loader = DataLoader(observing.Files(tmp_path / "file"), num_workers=workers, batch_size=4)
    watched = Watched(loader, spool)
    watched.run()
    first, second = sorted(watched.fetches(2), key=lambda fetch: fetch.batch)
    for fetch in (first, second):
        assert (fetch.loader, fetch.samples, fetch.read_bytes, fetch.reads) == (3, 4, 200, 4)
        assert fetch.opens == (4 if workers else 0)  # an audit hook cannot be removed: none in the main process
        assert 0 < fetch.slowest_s < fetch.fetch_s
        assert 0 < fetch.collate_s < fetch.fetch_s
        assert fetch.cpu_s > 0
    assert first.at_s + first.fetch_s <= second.at_s or workers


def test_workers_that_start_are_told_with_the_time_it_took(spool):
    watched = Watched(numbers_loader(), spool)
    watched.run()
    watched.fetches(6)
    started = [line for line in watched.lines if isinstance(line, EventLine)]
    assert [(event.what, event.loader, event.worker) for event in started] == [
        ("worker_started", 3, 0),
        ("worker_started", 3, 1),
    ]
    assert all(0 < event.seconds <= event.at_s for event in started)


@pytest.mark.parametrize("size", [12, 16])
def test_persistent_workers_number_their_batches_anew_in_every_pass(size, spool):
    watched = Watched(DataLoader(observing.Numbers(size), 4, num_workers=2, persistent_workers=True), spool)
    for _ in range(3):
        watched.run()
    found = {(fetch.epoch, fetch.batch, fetch.worker) for fetch in watched.fetches(3 * size // 4)}
    assert found == {(number, batch, batch % 2) for number in range(3) for batch in range(size // 4)}


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_of_uneven_shards_are_numbered_as_the_loop_gets_them(persistent, spool):
    loader = DataLoader(observing.Shards([7, 0, 3, 1]), 1, num_workers=4, persistent_workers=persistent)
    watched = Watched(loader, spool)
    delivered = {(number, at): int(batch) for number in range(2) for at, batch in enumerate(watched.run())}
    found = {(fetch.epoch, fetch.batch): fetch.worker for fetch in watched.fetches(22)}
    assert found == delivered


def test_the_last_batch_of_an_iterable_dataset_counts_only_what_there_was(spool):
    watched = Watched(DataLoader(observing.Shards([7]), 3, num_workers=1), spool)
    watched.run()
    assert [fetch.samples for fetch in watched.fetches(3)] == [3, 3, 1]


def test_without_in_order_the_number_of_a_batch_is_not_known(spool):
    watched = Watched(numbers_loader(in_order=False), spool)
    watched.run()
    assert [fetch.batch for fetch in watched.fetches(6)] == [-1] * 6


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_are_batches_already_are_timed(workers, spool):
    watched = Watched(DataLoader(observing.Numbers(3), batch_size=None, num_workers=workers), spool)
    watched.run()
    assert [(fetch.samples, fetch.slowest_s > 0) for fetch in watched.fetches(3)] == [(1, True)] * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_makes_batches_in_one_go_gets_its_own_list_and_has_no_slowest_sample(workers, spool):
    watched = Watched(DataLoader(observing.InOneGo(8), 4, num_workers=workers), spool)
    watched.run()
    assert [(fetch.samples, fetch.slowest_s) for fetch in watched.fetches(2)] == [(4, 0.0)] * 2
    assert all(fetch.collate_s > 0 for fetch in watched.fetches(2))


def test_a_loader_inside_the_dataset_is_not_mistaken_for_the_one_watched(spool):
    watched = Watched(DataLoader(observing.Nested(4), 2, num_workers=1), spool)
    assert plain(watched.run()) == [[0, 6], [12, 18]]
    fetches = watched.fetches(2)
    assert [fetch.samples for fetch in fetches] == [2, 2]
    assert all(fetch.slowest_s > 2 * fetch.collate_s for fetch in fetches)


def message_of(iterator):
    """Of the error. Workers are ended here: an iterator in the garbage takes torch seconds to end."""
    with pytest.raises(ValueError) as caught:
        list(iterator)
    iterator._shutdown_workers()
    return str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        (observing.Bad(), {}),
        (observing.Numbers(), {"collate_fn": observing.bad_collate}),
        (observing.Numbers(), {"worker_init_fn": observing.bad_init}),
        (observing.BadShards(), {}),
    ],
)
def test_an_error_in_a_worker_reads_as_it_does_without_us(dataset, settings, spool):
    loader = DataLoader(dataset, 2, num_workers=1, **settings)
    expected = message_of(iter(loader))
    assert "Traceback" in expected
    assert message_of(Watched(loader, spool).begin()) == expected


def test_an_error_without_workers_passes_through_and_its_batch_has_no_line(spool):
    watched = Watched(DataLoader(observing.Bad(), 2), spool)
    with pytest.raises(ValueError, match=r"^sample 5 is bad$"):
        watched.run()
    assert [fetch.batch for fetch in spool.drain()] == [0, 1]


def test_the_users_init_function_is_put_back_whatever_happens(spool):
    loader = numbers_loader(worker_init_fn=observing.seeded_init)

    def refuse(loader):
        assert loader.worker_init_fn is not observing.seeded_init
        raise RuntimeError("no workers today")

    with pytest.raises(RuntimeError, match="no workers today"):
        torchloader.make_iterator(loader, 0, 0, spool, 0.0, make=refuse)
    assert loader.worker_init_fn is observing.seeded_init


def test_a_pass_left_early_leaves_no_worker_waiting(spool):
    watched = Watched(numbers_loader(), spool)
    iterator = watched.begin()
    pids = torchloader.worker_pids(iterator)
    assert sorted(pids.values()) == [0, 1]
    next(iterator)
    del iterator
    assert not pids.keys() & {child.pid for child in multiprocessing.active_children()}
    assert all(fetch.batch >= 0 for fetch in watched.fetches(1))


def wait_for(iterator, ready):
    deadline = time.monotonic() + 30
    while (seen := torchloader.queue_state(iterator)).ready != ready and time.monotonic() < deadline:
        time.sleep(0.01)
    return seen


def gated(slow, spool, **settings):
    gate = multiprocessing.get_context("fork").Event()
    loader = DataLoader(observing.Waiting(gate, slow), 2, num_workers=3, prefetch_factor=2, **settings)
    return gate, Watched(loader, spool).begin()


def test_one_lagging_worker_is_named_with_all_others_ready(spool):
    gate, iterator = gated({0}, spool)
    assert wait_for(iterator, ready=4) == LoaderState(ready=4, outstanding=6, worker=0)
    gate.set()
    assert [int(batch[0]) for batch in iterator] == list(range(0, 24, 2))


def test_when_all_workers_are_slow_nothing_is_ready(spool):
    gate, iterator = gated({0, 1, 2}, spool)
    assert torchloader.queue_state(iterator) == LoaderState(ready=0, outstanding=6, worker=0)
    gate.set()
    assert wait_for(iterator, ready=6) == LoaderState(ready=6, outstanding=6, worker=0)
    next(iterator)
    assert torchloader.queue_state(iterator).worker == 1


def test_without_in_order_nobody_in_particular_is_awaited(spool):
    gate, iterator = gated({0}, spool, in_order=False)
    assert wait_for(iterator, ready=4).worker is None
    gate.set()


def test_workers_that_have_ended_are_neither_ready_nor_awaited(spool):
    iterator = Watched(DataLoader(observing.Shards([4, 0]), 1, num_workers=2), spool).begin()
    seen = defaultdict(set)
    for at, _ in enumerate(iterator):
        look = torchloader.queue_state(iterator)
        seen[at] = look.worker, look.outstanding >= look.ready - 1
    assert seen[2] == (0, True)


def test_where_queues_cannot_be_counted_the_rest_is_still_known(spool, monkeypatch):
    gate, iterator = gated({0}, spool)

    def refuse():
        raise NotImplementedError  # as on macOS

    monkeypatch.setattr(iterator._data_queue, "qsize", refuse)
    assert torchloader.queue_state(iterator) == LoaderState(ready=None, outstanding=6, worker=0)
    gate.set()


def test_what_another_torch_does_not_have_is_not_known():
    assert torchloader.queue_state(object()) == NOTHING
    assert torchloader.worker_pids(object()) == {}
    assert torchloader.take_wait_parts(object()) == WaitParts(0.0, None)


def test_without_workers_the_loop_itself_is_awaited(spool):
    assert torchloader.queue_state(Watched(numbers_loader(num_workers=0), spool).begin()) == LoaderState(worker=-1)


def test_the_samplers_time_is_taken_once(spool, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(torchloader.time, "perf_counter", clock.now)

    def slow_sampler():
        for batch in range(3):
            clock.advance(2.0)
            yield [batch]

    loader = DataLoader(observing.Numbers(3), batch_sampler=type("Slow", (), {"__iter__": lambda _: slow_sampler()})())
    iterator = torchloader.make_iterator(loader, 0, 0, spool, 0.0)
    next(iterator)
    next(iterator)
    assert torchloader.take_wait_parts(iterator).sampler_s == 4.0
    assert torchloader.take_wait_parts(iterator).sampler_s == 0.0


def test_the_whereabouts_of_a_worker_that_waits_for_a_lock_say_so(spool):
    gate, iterator = gated({0, 1, 2}, spool)
    watched = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not watched:
        watched = [line for line in spool.drain() if isinstance(line, StackSamplesLine)]
        time.sleep(0.05)
    gate.set()
    assert watched[0].loader == 3
    assert watched[0].states.keys() == {"lock"}
    assert all(name.startswith("multiprocessing.") for name in watched[0].functions)
    assert len(list(iterator)) == 12


def test_of_the_wait_it_is_known_how_long_nothing_came(spool):
    loader = DataLoader(list(range(8)), batch_size=2, num_workers=1)
    iterator = torchloader.make_iterator(loader, 0, 0, spool, 0.0)
    torchloader.take_wait_parts(iterator)
    began = time.perf_counter()
    next(iterator)
    wait_s = time.perf_counter() - began
    idle_s = torchloader.take_wait_parts(iterator).idle_s
    assert 0 < idle_s <= wait_s
    assert torchloader.take_wait_parts(iterator).idle_s == 0.0


def test_the_stopwatches_of_the_wait_can_be_taken_out_and_put_in_again(spool):
    loader = DataLoader(list(range(16)), batch_size=2, num_workers=1)
    iterator = torchloader.make_iterator(loader, 0, 0, spool, 0.0)
    next(iterator)
    assert torchloader.take_wait_parts(iterator).sampler_s > 0
    stopwatches.remove_wait_timers(iterator)
    stopwatches.remove_wait_timers(iterator)
    next(iterator)
    assert torchloader.take_wait_parts(iterator) == WaitParts(0.0, None)
    stopwatches.install_wait_timers(iterator)
    stopwatches.install_wait_timers(iterator)
    batches = [next(iterator).tolist()]
    parts = torchloader.take_wait_parts(iterator)
    assert parts.sampler_s > 0
    assert parts.idle_s is not None
    assert batches + [batch.tolist() for batch in iterator] == [[at, at + 1] for at in range(4, 16, 2)]


def test_what_lies_in_the_queue_is_counted_without_asking_the_queue(spool):
    gate, iterator = gated({0}, spool)
    assert wait_for(iterator, ready=4).ready == 4
    base, sign, count = stopwatches.queue_counter(iterator)
    assert base + sign * count() == 4
    gate.set()
    list(iterator)
    assert base + sign * count() == 0


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "in_order": False}])
def test_where_order_or_workers_are_missing_the_queue_is_not_counted(spool, settings):
    assert (
        stopwatches.queue_counter(torchloader.make_iterator(DataLoader(list(range(4)), **settings), 0, 0, spool, 0.0))
        is None
    )
