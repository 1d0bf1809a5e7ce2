"""Short steps that are not looked at: nothing of ours is in their way, and what is seen in every step still is."""

import functools
import logging

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
from penstock.watcher.hooks.patches import FunctionPatch, Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.start import WatchedRun
from penstock.watcher.step_sampling import BLOCK, YOUNG

STEPS = YOUNG + 8 * BLOCK
CALLS = {"forward", "backward", "optimizer"}


class Lines:
    """A sink that keeps steps."""

    def __init__(self):
        self.steps = []

    def put(self, line):
        if isinstance(line, StepLine):
            self.steps.append(line)

    def close(self):
        pass


class Watched:
    def __init__(self):
        self.lines = Lines()
        self.watching = WatchedRun(None, [self.lines])
        self.session = self.watching.session
        self.session.clock = FakeClock(self.session.began)  # no step is long, however busy the machine
        self.undo = install(self.watching)

    def steps(self, loader=0):
        self.session.settle()
        return [step for step in self.lines.steps if step.loader == loader]


@pytest.fixture
def watched():
    it = Watched()
    yield it
    it.undo()
    it.watching.close()


def loader_of(steps=STEPS, **settings):
    return DataLoader(TensorDataset(torch.randn(steps, 4)), **settings)


def each_step(loader, model=None):
    """Trains, and gives the caller a look at every step when it is done."""
    model = model or nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (x,) in enumerate(loader):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        yield number


def in_the_way():
    """What of ours a step meets, but for the call of its model."""
    return [
        torch.autograd.backward.__module__,
        *(hook.__module__ for hook in torch_optimizer._global_optimizer_pre_hooks.values()),
        *(hook.__module__ for hook in torch_optimizer._global_optimizer_post_hooks.values()),
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_of_many_short_steps_few_have_phases_and_the_others_say_so(watched, workers):
    for _ in each_step(loader_of(num_workers=workers)):
        watched.session.clock.sleep(0.001)
    steps = watched.steps()
    assert [step.batch for step in steps] == list(range(STEPS))
    assert all(step.samples == 1 and step.step_s == pytest.approx(0.001) for step in steps)
    assert [step.profiled for step in steps[:YOUNG]] == [True] * YOUNG
    assert sum(step.profiled for step in steps) == YOUNG + 8
    assert all((set(step.phases) >= CALLS) == step.profiled for step in steps)
    assert all((step.idle_s is not None) == (step.profiled and workers > 0) for step in steps)
    if workers:
        assert all(step.ready is not None and step.outstanding and step.worker == 0 for step in steps)


def test_long_steps_all_have_phases(watched):
    for _ in each_step(loader_of()):
        watched.session.clock.sleep(0.1)
    assert all(step.profiled and set(step.phases) >= CALLS for step in watched.steps())


def test_nothing_is_in_the_way_of_a_step_that_is_not_looked_at(watched):
    met = [in_the_way() for _ in each_step(loader_of())]
    ours = [any("penstock" in module for module in modules) for modules in met]
    assert ours == [step.profiled for step in watched.steps()]
    assert not ours[-1] or not ours[-2]


def test_logs_and_the_scripts_own_phases_are_seen_in_every_step(watched):
    logger, handler = logging.getLogger("a quick script's"), logging.NullHandler()
    handler.handle = functools.partial(logging.Handler.handle, handler)
    logger.addHandler(handler)
    for _ in each_step(loader_of()):
        logger.warning("loss is falling")
        with watched.session.phase("mine"):
            pass
    logger.removeHandler(handler)
    assert all({"log", "mine"} <= set(step.phases) for step in watched.steps())


def test_what_happens_while_the_loop_waits_is_no_phase_of_a_step(watched):
    class Waiting(TensorDataset):
        def __getitem__(self, index):
            with watched.session.phase("in the wait"):
                return super().__getitem__(index)

    for _ in DataLoader(Waiting(torch.zeros(STEPS))):
        with watched.session.phase("mine"):
            pass
    assert {frozenset(step.phases) - {"sampler"} for step in watched.steps()} == {frozenset({"mine"})}


def test_waits_for_the_device_are_seen_in_every_step_and_copies_to_it_in_some(watched):
    patches = Patches()
    phases = PhaseHooks(watched.session)
    watch_device(phases, patches, on_device=lambda tensor: tensor.dtype is torch.float64)
    there = torch.zeros(1, dtype=torch.float64)
    for (x,) in loader_of():
        there.item()
        there.to("cpu")
        x.to("meta")
    patches.undo()
    steps = watched.steps()
    assert all("sync" in step.phases for step in steps)
    assert [("h2d" in step.phases) for step in steps] == [step.profiled for step in steps]


def test_a_batch_whose_shape_raises_is_a_batch(watched):
    class Ragged:
        @property
        def shape(self):
            raise RuntimeError("NestedTensorImpl doesn't support sizes")

    for _ in loader_of(collate_fn=lambda samples: Ragged()):
        pass
    assert [step.samples for step in watched.steps()] == [None] * STEPS


def test_after_an_evaluation_the_step_around_it_goes_on_as_it_was(watched):
    inner = loader_of(5)
    for number in each_step(outer := loader_of()):
        if number >= YOUNG:
            for (x,) in inner:
                nn.Linear(4, 1)(x)
            assert watched.session.resting == (not watched.session._current.profiled)
    assert len(outer) == len(watched.steps())
    assert any(not step.profiled for step in watched.steps())
    assert not watched.session.resting


def test_a_pass_begins_with_steps_that_are_looked_at(watched):
    loader = loader_of(YOUNG + BLOCK, num_workers=1, persistent_workers=True)
    for _ in range(2):
        for _ in each_step(loader):
            pass
    second = [step.profiled for step in watched.steps() if step.epoch == 1]
    assert second[:3] == [True] * 3
    assert sum(second) <= 3 + YOUNG // BLOCK + 2


def test_a_penstock_loader_too_is_looked_at_now_and_then(tmp_path):
    shards = make_shards(tmp_path, REID, samples=40, shards=1, scale=0.1)
    loader = penstock.Loader(shards, {"meta": penstock.Json(".json")}, batch_size=1, num_workers=1)
    it, model = Watched(), nn.Linear(4, 1)
    for _ in range(6):
        for _ in loader:
            model(torch.zeros(1, 4)).sum().backward()
    loader.close()
    it.undo()
    steps = it.steps()
    it.watching.close()
    assert len(steps) == 240
    assert YOUNG < sum(step.profiled for step in steps) < 120
    assert all(("backward" in step.phases) == step.profiled for step in steps)


def test_all_is_undone_after_a_step_that_was_not_looked_at():
    before = torch.autograd.backward, in_the_way()
    it = Watched()
    for number in each_step(loader_of()):
        if number > YOUNG and it.session.resting:
            break
    it.undo()
    it.watching.close()
    for _ in each_step(loader_of(3)):
        assert (torch.autograd.backward, in_the_way()) == before


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_a_compiled_optimizer_is_not_compiled_again_for_every_look(watched):
    torch._dynamo.reset()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = torch.compile(optimizer.step, backend="eager")
    compiled = []
    for (x,) in loader_of():
        model(x).sum().backward()
        step()
        compiled.append(torch._dynamo.utils.counters["frames"]["total"])
    torch._dynamo.reset()
    assert compiled[-1] == compiled[YOUNG - 1]


# -- one switch ----------------------------------------------------------------------------------------------------


class Module:
    @staticmethod
    def name():
        return "theirs"


def around(function):
    return lambda: f"ours({function()})"


def test_a_switch_puts_ours_in_and_out():
    switch = FunctionPatch(Module, "name", around)
    theirs = Module.name
    for _ in range(2):
        switch.enable()
        switch.enable()
        assert Module.name() == "ours(theirs)"
        switch.disable()
        switch.disable()
        assert Module.name is theirs


def test_a_switch_keeps_what_somebody_put_there_meanwhile(monkeypatch):
    switch = FunctionPatch(Module, "name", around)
    switch.enable()
    switch.disable()
    monkeypatch.setattr(Module, "name", lambda: "another's")
    switch.enable()
    assert Module.name() == "ours(another's)"
    switch.disable()
    assert Module.name() == "another's"


def test_a_switch_does_not_take_out_what_somebody_put_around_it(monkeypatch):
    switch = FunctionPatch(Module, "name", around)
    switch.enable()
    ours = Module.name
    monkeypatch.setattr(Module, "name", lambda: f"another's({ours()})")
    switch.disable()
    assert Module.name() == "another's(ours(theirs))"
