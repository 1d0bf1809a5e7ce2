"""Real torch loaders and real processes; only time and, where named, decisions are the test's own."""

import gc
import logging
import multiprocessing

import pytest
import torch
from tests.support.adaptive_helpers import Numbers, Stream, Told, WaitingClock, flat, numbers
from torch.utils.data import DataLoader

from penstock.testing import FakeClock
from penstock.tuner.adaptive import controller as window
from penstock.tuner.adaptive import inner_loaders as lanes
from penstock.tuner.adaptive.controller import AdaptivePolicy
from penstock.tuner.adaptive.loader import AdaptiveLoader
from penstock.tuner.result import Setting

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SETTINGS = (Setting(1), Setting(3), Setting(2, 1), Setting(1, 4))


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch):
    monkeypatch.setattr(window, "ROUNDS", 1)


@pytest.fixture(autouse=True)
def _nothing_is_left_running():
    yield
    gc.collect()
    assert multiprocessing.active_children() == []


@pytest.fixture
def clock():
    return WaitingClock()


def run(loader, clock, wait_s=0.0, step_s=1.0, stop_after=None):
    """One pass of a training loop; its batches."""
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


def restless(dataset, clock, settings=SETTINGS, **kwargs):
    return AdaptiveLoader(dataset, controller=Told(*settings), clock=clock, **kwargs)


def both(make_one, make_other, use):
    """The same use of two loaders from the same dice; and what is thrown next."""
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
        {"batch_sampler": [[at, 119 - at] for at in range(60)]},
        {"batch_size": 2, "shuffle": True, "generator": 9},
    ],
)
def test_through_several_changes_order_and_dice_are_those_of_a_plain_loader(clock, settings):
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
        lambda: restless(Numbers(), clock, **with_generator()),
        lambda: DataLoader(Numbers(), num_workers=2, **with_generator()),
        two_epochs,
    )
    assert adaptive == plain
    assert len(changed[0]) == len(SETTINGS) - 1


def test_out_of_order_every_index_still_comes_once(clock):
    loader = restless(Numbers(), clock, batch_size=2, in_order=False)
    assert sorted(flat(run(loader, clock))) == list(range(120))
    assert len(loader.decisions) == len(SETTINGS) - 1


def test_settings_in_force_can_be_read_from_the_loader(clock):
    loader = restless(Numbers(), clock, (Setting(1), Setting(2, 3)), batch_size=2)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 2)
    run(loader, clock)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    assert len(loader) == len(iter(loader)) == 60


def test_every_change_is_logged_in_one_line_with_its_reason(clock, caplog):
    caplog.set_level(logging.INFO, "penstock")
    loader = restless(Numbers(), clock, (Setting(1), Setting(2)), batch_size=2)
    run(loader, clock)
    assert [record.getMessage() for record in caplog.records] == ["AdaptiveLoader: 1 worker → 2 workers: told to"]
    assert loader.decisions == ("1 worker → 2 workers: told to",)


def test_a_slow_dataset_gets_more_workers_by_itself(clock):
    loader = AdaptiveLoader(
        Numbers(200), batch_size=2, clock=clock, controller=AdaptivePolicy(Setting(1), most_workers=2)
    )
    assert numbers(run(loader, clock, wait_s=1.0, step_s=0.01)) == numbers(DataLoader(Numbers(200), batch_size=2))
    assert loader.decisions[0].startswith("1 worker → 2 workers: the loop waits")


def test_a_fast_dataset_is_left_alone(clock):
    loader = AdaptiveLoader(Numbers(), batch_size=2, clock=clock)
    run(loader, clock)
    assert loader.decisions == ()


@pytest.mark.parametrize("pinned", [{"num_workers": 1, "prefetch_factor": 3}, {"num_workers": 0}])
def test_what_the_user_set_is_never_touched(clock, pinned):
    loader = AdaptiveLoader(Numbers(), batch_size=2, clock=clock, **pinned)
    assert numbers(run(loader, clock, wait_s=1.0)) == numbers(DataLoader(Numbers(), batch_size=2))
    assert (loader.num_workers, loader.prefetch_factor) == (pinned["num_workers"], pinned.get("prefetch_factor"))
    assert loader.decisions == ()


def test_a_pinned_number_of_workers_leaves_the_prefetch_to_be_found(clock):
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
def test_a_pass_that_is_broken_off_leaves_nothing_and_the_next_is_whole(clock, persistent, stop_after):
    loader = restless(Numbers(), clock, batch_size=2, persistent_workers=persistent)
    broken = run(loader, clock, stop_after=stop_after)
    assert len(broken) == stop_after
    if not persistent:
        gc.collect()
        assert multiprocessing.active_children() == []
    assert numbers(run(loader, clock)) == numbers(DataLoader(Numbers(), batch_size=2))
    del loader


def test_workers_that_stay_are_the_same_in_the_next_epoch(clock):
    loader = restless(Numbers(), clock, (Setting(1), Setting(2)), batch_size=2, persistent_workers=True)
    run(loader, clock)
    before = {process.pid for process in multiprocessing.active_children()}
    run(loader, clock)
    assert {process.pid for process in multiprocessing.active_children()} == before
    assert len(before) == 2


@pytest.mark.parametrize("bad", [0, 33, 119])
def test_an_item_that_raises_does_so_where_a_plain_loader_would_and_the_pass_can_go_on(clock, bad):
    iterator = iter(restless(Numbers(bad=bad), clock, batch_size=2))
    got, told = [], []
    while True:
        try:
            got += next(iterator).tolist()
        except ValueError as error:
            told.append(str(error))
        except StopIteration:
            break
        clock.advance(1.0)
    assert [f"item {bad} is bad" in text for text in told] == [True]
    assert got == [at for at in range(120) if at // 2 != bad // 2]
    with pytest.raises(StopIteration):
        next(iterator)


def failure_of(loader, clock):
    """What ends a pass. The error is gone afterwards: its frames would keep torch's iterator."""
    try:
        run(loader, clock)
    except RuntimeError as error:
        return str(error)
    return ""


def as_numbers(samples):
    """No tensors: of one whose worker is dead by now torch cannot get the memory, and says that instead."""
    return [int(sample) for sample in samples]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("deadly", [0, 33])
def test_a_worker_that_dies_is_told_as_torch_tells_it_and_the_others_end(clock, deadly, persistent):
    settings = {"batch_size": 2, "persistent_workers": persistent, "collate_fn": as_numbers}
    loader = restless(Numbers(deadly=deadly), clock, **settings)
    assert "exited unexpectedly" in failure_of(loader, clock)
    assert loader._workshop.controller.refusals == []  # no change is blamed for it


def test_a_worker_that_dies_while_another_setting_starts_is_not_taken_for_a_failed_start(clock, monkeypatch):
    make = lanes.like

    def dying(pattern, changes, *, order=None):
        if changes["num_workers"] == 2:
            (victim,) = multiprocessing.active_children()
            victim.kill()
            victim.join()
            raise RuntimeError("DataLoader worker is gone")  # as torch's signal handler says it, at some point
        return make(pattern, changes, order=order)

    monkeypatch.setattr(lanes, "like", dying)
    loader = restless(Numbers(), clock, (Setting(1), Setting(2)), batch_size=2)
    assert "DataLoader worker" in failure_of(loader, clock)
    assert loader._workshop.controller.refusals == []


def test_a_new_setting_that_cannot_be_started_is_said_and_loses_nothing(clock, monkeypatch):
    make = lanes.like

    def failing(pattern, changes, *, order=None):
        if changes["num_workers"] == 3:
            assert [next(iter(order)), next(order)]  # it draws, and then fails
            raise OSError("no more processes")
        return make(pattern, changes, order=order)

    monkeypatch.setattr(lanes, "like", failing)
    for settings in ((Setting(1), Setting(3)), (Setting(1), Setting(3), Setting(2))):  # overlapping, and one by one
        loader = restless(Numbers(), clock, settings, batch_size=2)
        assert numbers(run(loader, clock)) == numbers(DataLoader(Numbers(), batch_size=2))
        assert loader._workshop.controller.refusals == ["OSError: no more processes"]
        assert "no more processes" in loader.decisions[1]


def test_an_iterable_dataset_is_changed_between_epochs_only(clock):
    loader = AdaptiveLoader(Stream(), batch_size=2, clock=clock)
    assert loader.num_workers == 1
    assert sorted(flat(run(loader, clock, wait_s=1.0))) == list(range(400))
    assert loader.num_workers == 1
    assert loader.decisions[0].startswith("1 worker → 2 workers")
    assert sorted(flat(run(loader, clock))) == list(range(400))
    assert loader.num_workers == 2


def test_an_iterable_dataset_that_would_repeat_itself_keeps_its_one_worker(clock):
    loader = AdaptiveLoader(Stream(deals=False), batch_size=2, clock=clock)
    for _ in range(3):
        assert flat(run(loader, clock, wait_s=1.0)) == list(range(400))
    assert loader.num_workers == 1
    assert "the same samples" in loader.decisions[1]


def test_an_iterable_datasets_pinned_workers_are_the_users_business(clock):
    loader = AdaptiveLoader(Stream(40), batch_size=2, num_workers=2, clock=clock)
    assert sorted(flat(run(loader, clock))) == list(range(40))
    assert loader.num_workers == 2


def test_a_pass_may_be_asked_again_after_its_end():
    iterator = iter(AdaptiveLoader(Numbers(4), num_workers=0, clock=FakeClock()))
    assert iter(iterator) is iterator
    assert len(list(iterator)) == 4
    with pytest.raises(StopIteration):
        next(iterator)
