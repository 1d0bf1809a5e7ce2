"""Loops of the script's kind, in this process, with real loaders; the probe is measured for moments only."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from penstock import EngineOptions, Loader
from penstock.testing import REID, FakeClock, make_shards
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.step_probe import probe as room
from penstock.watcher.step_probe.probe import ScriptStepProbe
from penstock.watcher.step_probe.probed_loaders import TRAINING_STEPS

SECONDS = 0.05
ENOUGH = 100_000


class Told:
    def __init__(self):
        self.stages = {}
        self.why = None

    def stage(self, name, timed, *, burners, samples, device):
        self.stages[name] = (timed, burners, samples, device)

    def end(self, why):
        self.why = why

    @property
    def ended(self):
        return self.why is not None


@pytest.fixture
def probe():
    """What it tells; torch is as it was afterwards."""
    patches, told = Patches(), Told()
    ScriptStepProbe(SECONDS, told).install(patches)
    yield told
    patches.undo()


@pytest.fixture
def train():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)

    def step(x):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

    return step


def numbers(count=12, start=0):
    return TensorDataset(torch.arange(start, start + count, dtype=torch.float32)[:, None])


def epochs(loader, told):
    """As a training does it, until the probe has enough."""
    for _ in itertools.takewhile(lambda _: not told.ended, range(ENOUGH)):
        for (x,) in loader:
            yield x
            if told.ended:
                return


def test_the_loader_that_is_trained_on_gives_one_batch_for_ever(probe, train):
    seen = []
    for x in epochs(DataLoader(numbers(), batch_size=4), probe):
        seen.append(x.flatten().tolist())
        train(x)
    assert probe.why == ""
    assert list(probe.stages) == ["data", "alone", "beside"]
    timed, burners, samples, device = probe.stages["beside"]
    assert (samples, device) == (4, "cpu")
    assert burners >= 1
    assert timed.steps >= 1
    assert len({tuple(x) for x in seen[: TRAINING_STEPS + 1]}) == 3
    assert len({tuple(x) for x in seen[-20:]}) == 1


def test_a_loader_that_is_only_evaluated_on_keeps_its_own(probe, train):
    loader, valid = DataLoader(numbers(), batch_size=4), DataLoader(numbers(6), batch_size=2)
    evaluated = []
    for at, x in enumerate(epochs(loader, probe)):
        train(x)
        if at % 5 == 0:
            evaluated.append([batch.flatten().tolist() for (batch,) in valid])
    assert probe.why == ""
    assert all(batches == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] for batches in evaluated)
    assert len(evaluated) > 5


def test_an_evaluation_is_no_part_of_a_step(train):
    """Nor are the start and the end of a pass; time passes only where this test lets it."""
    loader, valid = DataLoader(numbers(400), batch_size=4), DataLoader(numbers(6), batch_size=2)
    clock, patches, told = FakeClock(), Patches(), Told()
    ScriptStepProbe(SECONDS, told, clock).install(patches)
    try:
        for at, x in enumerate(epochs(loader, told)):
            train(x)
            clock.advance(0.001)
            if at % 10 == 0:
                for _ in valid:
                    clock.advance(0.005)
    finally:
        patches.undo()
    assert list(told.stages) == ["data", "alone", "beside"]
    assert all(timed.seconds == pytest.approx(timed.steps * 0.001) for timed, *_ in told.stages.values())


def test_two_loaders_that_feed_one_step_are_both_kept(probe, train):
    first, second = DataLoader(numbers(), batch_size=4), DataLoader(numbers(start=100), batch_size=4)
    seen = []
    while not probe.ended:
        for (x,), (y,) in zip(first, second, strict=True):
            seen.append((x[0].item(), y[0].item()))
            train(x + y)
            if probe.ended:
                break
    assert len(set(seen[:6])) == 3
    assert len(set(seen[-20:])) == 1


def test_epochs_that_are_counted_by_the_script_go_on_without_new_workers(probe, train, monkeypatch):
    loader = DataLoader(numbers(200), batch_size=4, num_workers=1)
    made = []
    make = torch.utils.data.dataloader._MultiProcessingDataLoaderIter.__init__
    monkeypatch.setattr(
        torch.utils.data.dataloader._MultiProcessingDataLoaderIter,
        "__init__",
        lambda iterator, loader: (made.append("data" in probe.stages), make(iterator, loader))[1],
    )
    while not probe.ended:
        for (x,) in itertools.islice(loader, 10):
            train(x)
    assert probe.why == ""
    assert made
    assert not any(made)


def test_a_loader_that_is_made_anew_for_every_epoch_is_followed(probe, train):
    while not probe.ended:
        for (x,) in DataLoader(numbers(80), batch_size=2):
            train(x)
            if probe.ended:
                break
    assert probe.why == ""
    assert "beside" in probe.stages


def test_steps_that_change_their_batch_find_it_as_it_was(probe, train):
    seen = []
    for x in epochs(DataLoader(numbers(), batch_size=4), probe):
        seen.append(x.flatten().tolist())
        train(x.div_(255.0))
    assert seen[-1] == seen[-2]
    assert max(seen[-1]) >= 1.0


def test_a_script_that_does_not_train_is_not_waited_for_for_ever(probe, monkeypatch):
    monkeypatch.setattr(room, "MAX_PROBE_S", 0.0)
    for _ in epochs(DataLoader(numbers(), batch_size=4), probe):
        pass
    assert probe.why == "no training step was seen in 0 s"
    assert probe.stages == {}


def test_a_load_that_cannot_be_started_ends_the_probe_and_not_the_script(probe, train, monkeypatch):
    def refused(count):
        raise OSError("no more processes")

    monkeypatch.setattr(room, "cpu_load", refused)
    for x in epochs(DataLoader(numbers(), batch_size=4), probe):
        train(x)
    assert probe.why == "the probe failed: OSError: no more processes"
    assert list(probe.stages) == ["data", "alone"]


def test_a_penstock_loader_is_probed_too(train, tmp_path):
    from penstock import Label

    shards = [str(path) for path in make_shards(tmp_path, REID, samples=12, scale=0.05)]
    patches, told = Patches(), Told()
    ScriptStepProbe(SECONDS, told).install(patches)
    try:
        with_id = {"id": Label(".json", key="identity")}
        loader = Loader(shards, with_id, 2, engine=EngineOptions(executor="thread"), num_workers=1)
        keys = []
        while not told.ended:
            for batch in loader:
                keys.append(tuple(batch["__key__"]))
                train(batch["id"].float()[:, None])
                if told.ended:
                    break
        loader.close()
    finally:
        patches.undo()
    assert told.why == ""
    assert len(set(keys[:6])) == 6
    assert len(set(keys[-20:])) == 1


def test_torch_is_as_it_was_afterwards(probe):
    assert DataLoader.__iter__.__qualname__ != "DataLoader.__iter__"


def test_and_before(train):
    assert DataLoader.__iter__.__qualname__ == "DataLoader.__iter__"
    assert torch.autograd.backward.__module__ == "torch.autograd"
