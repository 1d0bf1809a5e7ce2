"""The thread that pins batches. A copy takes the place of pinning, so that this runs without a GPU."""

import gc
import os
import signal
import threading

import pytest
import torch
from torch.utils.data._utils import pin_memory

from penstock import DataLoader
from penstock.runtime import engine_iteration
from tests.dataloader.samples import Numbers, Samples, outcomes


class Pinned(torch.Tensor):
    """A tensor that passed through the pinning thread."""


@pytest.fixture(autouse=True)
def pinning_copies(monkeypatch):
    monkeypatch.setattr(engine_iteration, "_pins_memory", lambda loader: loader.pin_memory)
    monkeypatch.setattr(pin_memory, "pin_memory", lambda batch: batch.clone().as_subclass(Pinned))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)


@pytest.mark.parametrize(
    "settings", [{}, {"persistent_workers": True}, {"in_order": False}, {"collate_fn": torch.tensor}], ids=str
)
def test_every_batch_of_every_epoch_is_pinned_also_after_an_early_break(settings):
    loader = DataLoader(Numbers(60), batch_size=2, num_workers=2, pin_memory=True, **settings)
    for epoch in range(4):
        found = []
        for count, batch in enumerate(loader):
            assert type(batch) is Pinned
            found += batch.tolist()
            if epoch == 1 and count == 7:
                break
        assert sorted(found) == list(range(60)) if epoch != 1 else len(set(found)) == 16
        assert settings.get("in_order") is False or found == sorted(found)


def test_errors_and_dead_workers_are_handled_as_without_pinning(tmp_path):
    class Failing(Numbers):
        def __getitem__(self, index):
            if index == 9:
                raise KeyError("nine")
            if index == 12 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    found = outcomes(DataLoader(Failing(24), batch_size=4, num_workers=2, pin_memory=True))
    assert found.pop(2)[0] == "KeyError"
    assert torch.cat(found).tolist() == [index for index in range(24) if not 8 <= index < 12]


def test_an_error_while_pinning_is_delivered(monkeypatch):
    def fail(batch):
        raise MemoryError("no pinned memory")

    monkeypatch.setattr(pin_memory, "pin_memory", fail)
    with pytest.raises(MemoryError, match=r"(?s)in pin memory thread for device 0.*no pinned memory"):
        next(iter(DataLoader(Numbers(8), num_workers=1, pin_memory=True)))


def test_the_state_is_that_of_the_batches_delivered_not_of_those_pinned():
    loader = DataLoader(Numbers(20), 2, True, num_workers=1, pin_memory=True)
    iterator = iter(loader)
    before = [next(iterator) for _ in range(3)]
    again = DataLoader(Numbers(20), 2, True, num_workers=1, pin_memory=True)
    again.load_state_dict(loader.state_dict())
    assert sorted(torch.cat([*before, *again]).tolist()) == list(range(20))


def test_the_thread_ends_with_its_iterator():
    gc.collect()
    before = threading.active_count()
    for _ in range(3):
        next(iter(DataLoader(Samples("tensor"), batch_size=4, num_workers=2, pin_memory=True)))
    gc.collect()
    assert threading.active_count() == before


def test_a_timeout_is_an_error(tmp_path):
    class Waiting(Numbers):
        def __getitem__(self, index):
            while not (tmp_path / "gate").exists():
                signal.sigtimedwait([], 0.001)
            return index

    with pytest.raises(RuntimeError, match="timed out"):
        next(iter(DataLoader(Waiting(8), num_workers=1, pin_memory=True, timeout=0.2)))
