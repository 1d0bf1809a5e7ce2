"""The step probe in this process, with training loops and real loaders; each stage is measured for SECONDS only."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from penstock import EngineOptions, Loader
from penstock.testing import REID, FakeClock, make_shards
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.step_probe import probe as probe_module
from penstock.watcher.step_probe.probe import ScriptStepProbe
from penstock.watcher.step_probe.probed_loaders import TRAINING_STEPS

SECONDS = 0.05
"""Seconds that each stage is measured."""
MAX_EPOCHS = 100_000
"""More epochs than a probe that works ever needs."""


class RecordingReporter:
    """Keeps what the probe reports."""

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
    """Install a probe, yield its reporter, and remove the probe's patches afterwards."""
    patches, reporter = Patches(), RecordingReporter()
    ScriptStepProbe(SECONDS, reporter).install(patches)
    yield reporter
    patches.undo()


@pytest.fixture
def train():
    """Return a function that makes one training step on a batch."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)

    def step(x):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

    return step


def numbers(count=12, start=0):
    return TensorDataset(torch.arange(start, start + count, dtype=torch.float32)[:, None])


def batches_of_epochs(loader, reporter):
    """Yield the batches of one epoch after another until the probe has ended."""
    for _ in itertools.takewhile(lambda _: not reporter.ended, range(MAX_EPOCHS)):
        for (x,) in loader:
            yield x
            if reporter.ended:
                return


def test_a_loader_used_for_training_repeats_one_batch_after_the_data_stage(probe, train):
    received = []
    for x in batches_of_epochs(DataLoader(numbers(), batch_size=4), probe):
        received.append(x.flatten().tolist())
        train(x)
    assert probe.why == ""
    assert list(probe.stages) == ["data", "alone", "beside"]
    timed, burners, samples, device = probe.stages["beside"]
    assert (samples, device) == (4, "cpu")
    assert burners >= 1
    assert timed.steps >= 1
    assert len({tuple(x) for x in received[: TRAINING_STEPS + 1]}) == 3
    assert len({tuple(x) for x in received[-20:]}) == 1


def test_a_loader_used_only_for_evaluation_delivers_its_own_batches(probe, train):
    loader, valid = DataLoader(numbers(), batch_size=4), DataLoader(numbers(6), batch_size=2)
    evaluated = []
    for step, x in enumerate(batches_of_epochs(loader, probe)):
        train(x)
        if step % 5 == 0:
            evaluated.append([batch.flatten().tolist() for (batch,) in valid])
    assert probe.why == ""
    assert all(batches == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] for batches in evaluated)
    assert len(evaluated) > 5


def test_evaluation_time_does_not_count_as_step_time(train):
    """The start and the end of an epoch do not count either. The clock advances only in the step and the evaluation."""
    loader, valid = DataLoader(numbers(400), batch_size=4), DataLoader(numbers(6), batch_size=2)
    clock, patches, reporter = FakeClock(), Patches(), RecordingReporter()
    ScriptStepProbe(SECONDS, reporter, clock).install(patches)
    try:
        for step, x in enumerate(batches_of_epochs(loader, reporter)):
            train(x)
            clock.advance(0.001)
            if step % 10 == 0:
                for _ in valid:
                    clock.advance(0.005)
    finally:
        patches.undo()
    assert list(reporter.stages) == ["data", "alone", "beside"]
    assert all(timed.seconds == pytest.approx(timed.steps * 0.001) for timed, *_ in reporter.stages.values())


def test_two_loaders_that_feed_one_step_both_repeat_a_batch(probe, train):
    first, second = DataLoader(numbers(), batch_size=4), DataLoader(numbers(start=100), batch_size=4)
    received = []
    while not probe.ended:
        for (x,), (y,) in zip(first, second, strict=True):
            received.append((x[0].item(), y[0].item()))
            train(x + y)
            if probe.ended:
                break
    assert len(set(received[:6])) == 3
    assert len(set(received[-20:])) == 1


def test_no_workers_are_started_once_a_batch_is_repeated(probe, train, monkeypatch):
    loader = DataLoader(numbers(200), batch_size=4, num_workers=1)
    started_after_data_stage = []
    init = torch.utils.data.dataloader._MultiProcessingDataLoaderIter.__init__
    monkeypatch.setattr(
        torch.utils.data.dataloader._MultiProcessingDataLoaderIter,
        "__init__",
        lambda iterator, loader: (started_after_data_stage.append("data" in probe.stages), init(iterator, loader))[1],
    )
    while not probe.ended:
        for (x,) in itertools.islice(loader, 10):
            train(x)
    assert probe.why == ""
    assert started_after_data_stage
    assert not any(started_after_data_stage)


def test_a_loader_recreated_for_every_epoch_is_probed(probe, train):
    while not probe.ended:
        for (x,) in DataLoader(numbers(80), batch_size=2):
            train(x)
            if probe.ended:
                break
    assert probe.why == ""
    assert "beside" in probe.stages


def test_a_batch_changed_in_place_by_the_step_is_restored(probe, train):
    received = []
    for x in batches_of_epochs(DataLoader(numbers(), batch_size=4), probe):
        received.append(x.flatten().tolist())
        train(x.div_(255.0))
    assert received[-1] == received[-2]
    assert max(received[-1]) >= 1.0


def test_the_probe_of_a_script_that_does_not_train_ends_after_the_time_limit(probe, monkeypatch):
    monkeypatch.setattr(probe_module, "MAX_PROBE_S", 0.0)
    for _ in batches_of_epochs(DataLoader(numbers(), batch_size=4), probe):
        pass
    assert probe.why == "no training step was seen in 0 s"
    assert probe.stages == {}


def test_a_cpu_load_that_fails_to_start_ends_the_probe_but_not_the_script(probe, train, monkeypatch):
    def failing_load(count):
        raise OSError("no more processes")

    monkeypatch.setattr(probe_module, "cpu_load", failing_load)
    for x in batches_of_epochs(DataLoader(numbers(), batch_size=4), probe):
        train(x)
    assert probe.why == "the probe failed: OSError: no more processes"
    assert list(probe.stages) == ["data", "alone"]


def test_a_penstock_loader_is_probed(train, tmp_path):
    from penstock import Label

    shards = [str(path) for path in make_shards(tmp_path, REID, samples=12, scale=0.05)]
    patches, reporter = Patches(), RecordingReporter()
    ScriptStepProbe(SECONDS, reporter).install(patches)
    try:
        fields = {"id": Label(".json", key="identity")}
        loader = Loader(shards, fields, 2, engine=EngineOptions(executor="thread"), num_workers=1)
        keys = []
        while not reporter.ended:
            for batch in loader:
                keys.append(tuple(batch["__key__"]))
                train(batch["id"].float()[:, None])
                if reporter.ended:
                    break
        loader.close()
    finally:
        patches.undo()
    assert reporter.why == ""
    assert len(set(keys[:6])) == 6
    assert len(set(keys[-20:])) == 1


def test_the_probe_patches_torch_while_it_is_installed(probe):
    assert DataLoader.__iter__.__qualname__ != "DataLoader.__iter__"


def test_removing_the_probe_restores_torch(train):
    patches = Patches()
    ScriptStepProbe(SECONDS, RecordingReporter()).install(patches)
    patches.undo()
    assert DataLoader.__iter__.__qualname__ == "DataLoader.__iter__"
    assert torch.autograd.backward.__module__ == "torch.autograd"
