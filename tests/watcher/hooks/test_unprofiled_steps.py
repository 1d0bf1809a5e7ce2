"""Short steps that are not profiled: the hooks are taken out for them, and only some numbers are recorded."""

import functools
import logging
import sys

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.recording.format import StepLine
from penstock.testing import REID, FakeClock, make_shards
from penstock.watcher.hooks import install
from penstock.watcher.hooks.device import watch_device
from penstock.watcher.hooks.in_use import InUse
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.start import WatchedRun
from penstock.watcher.step_sampling import FIRST_OF_LOADER, INTERVAL

STEPS = FIRST_OF_LOADER + 8 * INTERVAL
PROFILED_STEP_PHASES = {"forward", "backward", "optimizer"}


class StepSink:
    """A sink that keeps steps only."""

    def __init__(self):
        self.steps = []

    def put(self, line):
        if isinstance(line, StepLine):
            self.steps.append(line)

    def close(self):
        pass


class HookedRun:
    """A watched run with the hooks installed, on a fake clock: steps are short even on a busy machine."""

    def __init__(self):
        self.sink = StepSink()
        self.run = WatchedRun(None, [self.sink])
        self.session = self.run.session
        self.session.clock = FakeClock(self.session.clock_start)
        self.undo = install(self.run)

    def steps(self, loader=0):
        self.session.flush()
        return [step for step in self.sink.steps if step.loader == loader]

    def close(self):
        self.undo()
        self.run.close()


@pytest.fixture
def hooked():
    hooked = HookedRun()
    yield hooked
    hooked.close()


def loader_of(steps=STEPS, **settings):
    """Return a loader with one sample per batch."""
    return DataLoader(TensorDataset(torch.randn(steps, 4)), **settings)


def training_steps(loader, model=None):
    """Train for one epoch, and yield the number of each step at its end."""
    model = model or nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step, (x,) in enumerate(loader):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        yield step


def modules_of_step_hooks():
    """Return the Python modules of the functions that run in a step, besides the call of the model."""
    return [
        torch.autograd.backward.__module__,
        *(hook.__module__ for hook in torch_optimizer._global_optimizer_pre_hooks.values()),
        *(hook.__module__ for hook in torch_optimizer._global_optimizer_post_hooks.values()),
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_few_of_many_short_steps_are_profiled_and_marked_so(hooked, workers):
    for _ in training_steps(loader_of(num_workers=workers)):
        hooked.session.clock.sleep(0.001)
    steps = hooked.steps()
    assert [step.batch for step in steps] == list(range(STEPS))
    assert all(step.samples == 1 and step.step_s == pytest.approx(0.001) for step in steps)
    assert [step.profiled for step in steps[:FIRST_OF_LOADER]] == [True] * FIRST_OF_LOADER
    assert sum(step.profiled for step in steps) in (FIRST_OF_LOADER + 8, FIRST_OF_LOADER + 9)
    assert all((set(step.phases) >= PROFILED_STEP_PHASES) == step.profiled for step in steps)
    assert all((step.idle_s is not None) == (step.profiled and workers > 0) for step in steps)
    if workers:
        assert all(step.ready is not None and step.outstanding and step.worker == 0 for step in steps)


def watcher_calls(step_s, hooked, steps=10 * INTERVAL):
    """Return the calls of Python functions of the watcher per step, without those of the first steps."""
    counted = []

    def count(frame, event, _):
        if event == "call" and "/watcher/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename:
            counted.append(frame.f_code.co_qualname)

    try:
        for step in training_steps(loader_of(steps + FIRST_OF_LOADER, num_workers=1)):
            hooked.session.clock.sleep(step_s)
            if step == FIRST_OF_LOADER:
                sys.setprofile(count)
    finally:
        sys.setprofile(None)
    return len(counted) / steps


def test_watching_a_short_step_costs_two_or_three_python_calls(hooked):
    assert 2 <= watcher_calls(0.01, hooked) < 2.8


def test_all_long_steps_are_profiled(hooked):
    for _ in training_steps(loader_of()):
        hooked.session.clock.sleep(0.1)
    assert all(step.profiled and set(step.phases) >= PROFILED_STEP_PHASES for step in hooked.steps())


def test_no_hook_is_installed_in_a_step_that_is_not_profiled(hooked):
    modules_by_step = [modules_of_step_hooks() for _ in training_steps(loader_of())]
    has_hooks = [any("penstock" in module for module in modules) for modules in modules_by_step]
    assert has_hooks == [step.profiled for step in hooked.steps()]
    assert not all(has_hooks[-2:])


def test_logs_and_the_scripts_own_phases_are_recorded_in_every_step(hooked):
    logger, handler = logging.getLogger("script with short steps"), logging.NullHandler()
    handler.handle = functools.partial(logging.Handler.handle, handler)
    logger.addHandler(handler)
    for _ in training_steps(loader_of()):
        logger.warning("loss is falling")
        with hooked.session.phase("own phase"):
            pass
    logger.removeHandler(handler)
    assert all({"log", "own phase"} <= set(step.phases) for step in hooked.steps())


def test_a_phase_during_the_wait_for_a_batch_does_not_count_to_a_step(hooked):
    class DatasetWithPhase(TensorDataset):
        def __getitem__(self, index):
            with hooked.session.phase("in the wait"):
                return super().__getitem__(index)

    for _ in DataLoader(DatasetWithPhase(torch.zeros(STEPS))):
        with hooked.session.phase("own phase"):
            pass
    assert {frozenset(step.phases) - {"sampler"} for step in hooked.steps()} == {frozenset({"own phase"})}


def test_waits_for_the_gpu_are_recorded_in_every_step_and_copies_in_profiled_ones(hooked):
    patches = Patches()
    watch_device(
        PhaseHooks(hooked.session),
        patches,
        InUse(hooked.session),
        on_device=lambda tensor: tensor.dtype is torch.float64,
    )
    tensor_on_device = torch.zeros(1, dtype=torch.float64)
    for (x,) in loader_of():
        tensor_on_device.item()
        tensor_on_device.to("cpu")
        x.to("meta")
    patches.undo()
    steps = hooked.steps()
    assert all("sync" in step.phases for step in steps)
    assert [("h2d" in step.phases) for step in steps] == [step.profiled for step in steps]


def test_a_batch_whose_shape_raises_is_recorded_without_a_number_of_samples(hooked):
    class RaggedBatch:
        @property
        def shape(self):
            raise RuntimeError("NestedTensorImpl doesn't support sizes")

    for _ in loader_of(collate_fn=lambda samples: RaggedBatch()):
        pass
    assert [step.samples for step in hooked.steps()] == [None] * STEPS


def test_after_an_evaluation_within_a_step_that_step_is_profiled_or_not_as_before(hooked):
    evaluation_loader = loader_of(5)
    for step in training_steps(training_loader := loader_of()):
        if step >= FIRST_OF_LOADER:
            for (x,) in evaluation_loader:
                nn.Linear(4, 1)(x)
            assert hooked.session.unprofiled == (not hooked.session._current.profiled)
    assert len(training_loader) == len(hooked.steps())
    assert any(not step.profiled for step in hooked.steps())
    assert not hooked.session.unprofiled


def test_the_first_steps_of_every_epoch_are_profiled(hooked):
    loader = loader_of(FIRST_OF_LOADER + INTERVAL, num_workers=1, persistent_workers=True)
    for _ in range(2):
        for _ in training_steps(loader):
            pass
    second_epoch = [step.profiled for step in hooked.steps() if step.epoch == 1]
    assert second_epoch[:3] == [True] * 3
    assert sum(second_epoch) <= 3 + FIRST_OF_LOADER // INTERVAL + 2


def test_some_steps_of_a_penstock_loader_are_profiled(tmp_path):
    shards = make_shards(tmp_path, REID, samples=40, shards=1, scale=0.1)
    loader = penstock.Loader(shards, {"meta": penstock.Json(".json")}, batch_size=1, num_workers=1)
    hooked, model = HookedRun(), nn.Linear(4, 1)
    for _ in range(6):
        for _ in loader:
            model(torch.zeros(1, 4)).sum().backward()
    loader.close()
    hooked.undo()
    steps = hooked.steps()
    hooked.run.close()
    assert len(steps) == 240
    assert FIRST_OF_LOADER < sum(step.profiled for step in steps) < 120
    assert all(("backward" in step.phases) == step.profiled for step in steps)


def test_undo_in_a_step_that_is_not_profiled_leaves_no_hooks():
    before = torch.autograd.backward, modules_of_step_hooks()
    hooked = HookedRun()
    for step in training_steps(loader_of()):
        if step > FIRST_OF_LOADER and hooked.session.unprofiled:
            break
    hooked.close()
    for _ in training_steps(loader_of(3)):
        assert (torch.autograd.backward, modules_of_step_hooks()) == before


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_a_compiled_optimizer_is_not_recompiled_for_profiled_steps(hooked):
    torch._dynamo.reset()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer_step = torch.compile(optimizer.step, backend="eager")
    compilations = []
    for (x,) in loader_of():
        model(x).sum().backward()
        optimizer_step()
        compilations.append(torch._dynamo.utils.counters["frames"]["total"])
    torch._dynamo.reset()
    assert compilations[-1] == compilations[FIRST_OF_LOADER - 1]
