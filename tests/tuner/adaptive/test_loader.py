"""Real torch loaders and real processes with a fake clock and, in most tests, a fixed schedule of settings."""

import gc
import logging
import multiprocessing

import pytest
import torch
from tests.support.adaptive_helpers import Numbers, ScheduledPolicy, Stream, WaitingClock, flat, numbers
from torch.utils.data import DataLoader

from penstock.testing import FakeClock
from penstock.tuner.adaptive import controller, inner_loaders
from penstock.tuner.adaptive.controller import AdaptivePolicy
from penstock.tuner.adaptive.loader import AdaptiveLoader
from penstock.tuner.result import WorkerSettings

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SETTINGS = (WorkerSettings(1), WorkerSettings(3), WorkerSettings(2, 1), WorkerSettings(1, 4))


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch):
    monkeypatch.setattr(controller, "MIN_ROUNDS", 1)


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    gc.collect()
    assert multiprocessing.active_children() == []


@pytest.fixture
def clock():
    return WaitingClock()


def run(loader, clock, wait_s=0.0, step_s=1.0, stop_after=None):
    """Run a training loop for one epoch and return its batches."""
    batches = []
    iterator = iter(loader)
    while stop_after is None or len(batches) < stop_after:
        clock.waits_s = wait_s
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
        finally:
            clock.waits_s = 0.0
        clock.advance(step_s)
    return batches


def scheduled_loader(dataset, clock, settings=SETTINGS, **kwargs):
    return AdaptiveLoader(dataset, controller=ScheduledPolicy(*settings), clock=clock, **kwargs)


def both(make_one, make_other, use):
    """Use two loaders from the same seed; return for each the result and the next random number."""
    found = []
    for make in (make_one, make_other):
        torch.manual_seed(5)
        found.append((use(make()), float(torch.rand(1))))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 2, "shuffle": True},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": 2, "shuffle": True, "persistent_workers": True},
        {"batch_size": None, "sampler": range(59, -1, -1)},
        {"batch_sampler": [[index, 119 - index] for index in range(60)]},
        {"batch_size": 2, "shuffle": True, "generator": 9},
    ],
)
def test_order_and_random_numbers_are_those_of_a_plain_loader(clock, settings):
    def with_generator():
        if "generator" not in settings:
            return settings
        return {**settings, "generator": torch.Generator().manual_seed(settings["generator"])}

    changed = []

    def two_epochs(loader):
        found = [numbers(run(loader, clock)) for _ in range(2)]
        changed.append(getattr(loader, "decisions", ()))
        return found

    adaptive, plain = both(
        lambda: scheduled_loader(Numbers(), clock, **with_generator()),
        lambda: DataLoader(Numbers(), num_workers=2, **with_generator()),
        two_epochs,
    )
    assert adaptive == plain
    assert len(changed[0]) == len(SETTINGS) - 1


def test_every_index_is_delivered_once_out_of_order(clock):
    loader = scheduled_loader(Numbers(), clock, batch_size=2, in_order=False)
    assert sorted(flat(run(loader, clock))) == list(range(120))
    assert len(loader.decisions) == len(SETTINGS) - 1


def test_settings_in_force_are_attributes_of_the_loader(clock):
    loader = scheduled_loader(Numbers(), clock, (WorkerSettings(1), WorkerSettings(2, 3)), batch_size=2)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 2)
    run(loader, clock)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    assert len(loader) == len(iter(loader)) == 60


def test_every_change_is_logged_with_its_reason(clock, caplog):
    caplog.set_level(logging.INFO, "penstock")
    loader = scheduled_loader(Numbers(), clock, (WorkerSettings(1), WorkerSettings(2)), batch_size=2)
    run(loader, clock)
    assert [record.getMessage() for record in caplog.records] == ["AdaptiveLoader: 1 worker → 2 workers: scheduled"]
    assert loader.decisions == ("1 worker → 2 workers: scheduled",)


def test_slow_dataset_gets_more_workers(clock):
    loader = AdaptiveLoader(
        Numbers(200), batch_size=2, clock=clock, controller=AdaptivePolicy(WorkerSettings(1), max_workers=2)
    )
    assert numbers(run(loader, clock, wait_s=1.0, step_s=0.01)) == numbers(DataLoader(Numbers(200), batch_size=2))
    assert loader.decisions[0].startswith("1 worker → 2 workers: the loop waits")


def test_fast_dataset_is_left_alone(clock):
    loader = AdaptiveLoader(Numbers(), batch_size=2, clock=clock)
    run(loader, clock)
    assert loader.decisions == ()


@pytest.mark.parametrize("pinned", [{"num_workers": 1, "prefetch_factor": 3}, {"num_workers": 0}])
def test_given_settings_are_never_changed(clock, pinned):
    loader = AdaptiveLoader(Numbers(), batch_size=2, clock=clock, **pinned)
    assert numbers(run(loader, clock, wait_s=1.0)) == numbers(DataLoader(Numbers(), batch_size=2))
    assert (loader.num_workers, loader.prefetch_factor) == (pinned["num_workers"], pinned.get("prefetch_factor"))
    assert loader.decisions == ()


def test_prefetch_is_found_with_a_given_number_of_workers(clock):
    loader = AdaptiveLoader(Numbers(), batch_size=2, clock=clock, num_workers=1)
    run(loader, clock, wait_s=1.0)
    assert loader.num_workers == 1
    assert loader.decisions[0].startswith("1 worker → 1 worker, prefetch 4: the loop waits")


def test_settings_that_torch_refuses_are_refused():
    with pytest.raises(ValueError, match="num_workers"):
        AdaptiveLoader(Numbers(), num_workers=-1)
    with pytest.raises(ValueError, match="prefetch_factor"):
        AdaptiveLoader(Numbers(), num_workers=0, prefetch_factor=2)
    with pytest.raises(TypeError):
        AdaptiveLoader(Numbers(), no_such_thing=2)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("stop_after", [1, 4, 9, 23])
def test_epoch_after_an_abandoned_one_is_complete(clock, persistent, stop_after):
    loader = scheduled_loader(Numbers(), clock, batch_size=2, persistent_workers=persistent)
    broken = run(loader, clock, stop_after=stop_after)
    assert len(broken) == stop_after
    if not persistent:
        gc.collect()
        assert multiprocessing.active_children() == []
    assert numbers(run(loader, clock)) == numbers(DataLoader(Numbers(), batch_size=2))
    del loader


def test_persistent_workers_are_the_same_in_the_next_epoch(clock):
    loader = scheduled_loader(
        Numbers(), clock, (WorkerSettings(1), WorkerSettings(2)), batch_size=2, persistent_workers=True
    )
    run(loader, clock)
    before = {process.pid for process in multiprocessing.active_children()}
    run(loader, clock)
    assert {process.pid for process in multiprocessing.active_children()} == before
    assert len(before) == 2


@pytest.mark.parametrize("bad", [0, 33, 119])
def test_item_that_raises_does_so_at_its_place_and_the_epoch_can_continue(clock, bad):
    iterator = iter(scheduled_loader(Numbers(bad=bad), clock, batch_size=2))
    received, messages = [], []
    while True:
        try:
            received += next(iterator).tolist()
        except ValueError as error:
            messages.append(str(error))
        except StopIteration:
            break
        clock.advance(1.0)
    assert [f"item {bad} is bad" in text for text in messages] == [True]
    assert received == [number for number in range(120) if number // 2 != bad // 2]
    with pytest.raises(StopIteration):
        next(iterator)


def failure_of(loader, clock):
    """Return the message that ends an epoch. The error is dropped, because its frames would keep torch's iterator."""
    try:
        run(loader, clock)
    except RuntimeError as error:
        return str(error)
    return ""


def as_numbers(samples):
    """Collate without tensors: torch cannot open the memory of a tensor whose worker is dead, and reports that."""
    return [int(sample) for sample in samples]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("deadly", [0, 33])
def test_dead_worker_is_reported_like_torch_does_and_the_others_end(clock, deadly, persistent):
    settings = {"batch_size": 2, "persistent_workers": persistent, "collate_fn": as_numbers}
    loader = scheduled_loader(Numbers(deadly=deadly), clock, **settings)
    assert "exited unexpectedly" in failure_of(loader, clock)
    assert loader._factory.controller.refusals == []  # no change of settings is refused for it


def test_worker_that_dies_during_a_change_is_not_taken_for_a_failed_start(clock, monkeypatch):
    make = inner_loaders.copy_loader

    def dying(template, changes, *, order=None):
        if changes["num_workers"] == 2:
            (victim,) = multiprocessing.active_children()
            victim.kill()
            victim.join()
            raise RuntimeError("DataLoader worker is gone")  # as torch's signal handler does, at some point
        return make(template, changes, order=order)

    monkeypatch.setattr(inner_loaders, "copy_loader", dying)
    loader = scheduled_loader(Numbers(), clock, (WorkerSettings(1), WorkerSettings(2)), batch_size=2)
    assert "DataLoader worker" in failure_of(loader, clock)
    assert loader._factory.controller.refusals == []


def test_failed_start_of_new_settings_is_logged_and_loses_no_batch(clock, monkeypatch):
    make = inner_loaders.copy_loader

    def failing(template, changes, *, order=None):
        if changes["num_workers"] == 3:
            assert [next(iter(order)), next(order)]  # it takes indices, and then fails
            raise OSError("no more processes")
        return make(template, changes, order=order)

    monkeypatch.setattr(inner_loaders, "copy_loader", failing)
    for settings in (
        (WorkerSettings(1), WorkerSettings(3)),
        (WorkerSettings(1), WorkerSettings(3), WorkerSettings(2)),
    ):  # overlapping, and one after the other
        loader = scheduled_loader(Numbers(), clock, settings, batch_size=2)
        assert numbers(run(loader, clock)) == numbers(DataLoader(Numbers(), batch_size=2))
        assert loader._factory.controller.refusals == ["OSError: no more processes"]
        assert "no more processes" in loader.decisions[1]


def test_iterable_dataset_is_changed_between_epochs_only(clock):
    loader = AdaptiveLoader(Stream(), batch_size=2, clock=clock)
    assert loader.num_workers == 1
    assert sorted(flat(run(loader, clock, wait_s=1.0))) == list(range(400))
    assert loader.num_workers == 1
    assert loader.decisions[0].startswith("1 worker → 2 workers")
    assert sorted(flat(run(loader, clock))) == list(range(400))
    assert loader.num_workers == 2


def test_iterable_dataset_that_repeats_samples_keeps_one_worker(clock):
    loader = AdaptiveLoader(Stream(divides=False), batch_size=2, clock=clock)
    for _ in range(3):
        assert flat(run(loader, clock, wait_s=1.0)) == list(range(400))
    assert loader.num_workers == 1
    assert "the same samples" in loader.decisions[1]


def test_given_workers_of_an_iterable_dataset_are_not_checked(clock):
    loader = AdaptiveLoader(Stream(40), batch_size=2, num_workers=2, clock=clock)
    assert sorted(flat(run(loader, clock))) == list(range(40))
    assert loader.num_workers == 2


def test_exhausted_epoch_stays_exhausted():
    iterator = iter(AdaptiveLoader(Numbers(4), num_workers=0, clock=FakeClock()))
    assert iter(iterator) is iterator
    assert len(list(iterator)) == 4
    with pytest.raises(StopIteration):
        next(iterator)
