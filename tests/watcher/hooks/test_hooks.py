"""The hooks, installed around small trainings in this process."""

import copy
import functools
import gc
import io
import itertools
import linecache
import logging
import os
import pickle
import threading
import types
import weakref

import pytest
import torch
import tqdm
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

import penstock
from penstock.recording.format import EpochEndLine, EpochStartLine, EventLine, HopsLine, LoaderLine, StepLine
from penstock.testing import REID, FakeClock, make_shards
from penstock.watcher.active_session import publish_session
from penstock.watcher.hooks import install
from penstock.watcher.hooks.device import watch_device
from penstock.watcher.hooks.in_use import InUse
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.start import WatchedRun
from penstock.watcher.watch import watch

STEP_PHASES = {"forward", "backward", "optimizer"}
float_range = functools.partial(torch.arange, dtype=torch.float32)


class ListSink:
    """A sink that keeps its lines."""

    def __init__(self):
        self.lines = []

    def put(self, line):
        self.lines.append(line)

    def close(self):
        pass

    def lines_of(self, line_class):
        return [line for line in self.lines if isinstance(line, line_class)]

    @property
    def steps(self):
        return self.lines_of(StepLine)

    @property
    def phase_names(self):
        """The names of the phases of all steps together."""
        return {name for step in self.steps for name in step.phases}

    @property
    def epoch_ends(self):
        """How each epoch ended."""
        return [line.how for line in self.lines_of(EpochEndLine)]


class HookedRun:
    """A watched run with the hooks installed."""

    def __init__(self):
        self.sink = ListSink()
        self.run = WatchedRun(None, [self.sink])
        self.session = self.run.session
        self.undo = install(self.run)

    def close(self):
        self.undo()
        self.run.close()


@pytest.fixture
def hooked():
    hooked = HookedRun()
    yield hooked
    hooked.close()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1)))

    def forward(self, x):
        return self.inner(x)


def loader_of(samples=12, **settings):
    return DataLoader(TensorDataset(torch.randn(samples, 4)), **{"batch_size": 3, **settings})


def train(model, loader, forward=None):
    """Train for one epoch. `forward` replaces the call of the model."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in loader:
        optimizer.zero_grad()
        (model if forward is None else forward)(x).sum().backward()
        optimizer.step()


# -- loaders -------------------------------------------------------------------------------------------------------


def test_loaders_are_numbered_and_named_like_the_scripts_variables(hooked):
    train_loader, other = loader_of(shuffle=True), loader_of()
    for _ in range(2):
        list(train_loader)
        list(other)
    assert [(line.loader, line.name, line.type) for line in hooked.sink.lines_of(LoaderLine)] == [
        (0, "train_loader", "torch"),
        (1, "other", "torch"),
    ]
    epoch_starts = [(line.loader, line.epoch) for line in hooked.sink.lines_of(EpochStartLine)]
    assert epoch_starts == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert hooked.sink.epoch_ends == ["done"] * 4
    assert len(hooked.sink.steps) == 16


def test_loader_names_come_from_the_code_that_iterates(hooked):
    class Trainer:
        val_loader = loader_of(3)

    enumerated, in_progress_bar = loader_of(3), loader_of(3)
    for _ in Trainer.val_loader:
        pass
    for _ in enumerate(enumerated, 1):
        pass
    for _ in tqdm.tqdm(enumerate(in_progress_bar), desc="epoch", disable=True):
        pass
    assert [line.name for line in hooked.sink.lines_of(LoaderLine)] == ["val_loader", "enumerated", "in_progress_bar"]


def pass_on(batches):
    yield from batches


def test_other_names_in_the_iterated_expression_are_not_used(hooked):
    steps, title, loaders = 2, "epoch", {"train": loader_of(3), 3: loader_of(3)}
    in_bar, sliced, first, second, first_batch, unpacked, passed_on = (loader_of(3) for _ in range(7))
    # The µ takes two bytes, so that offsets in bytes and in characters differ.
    for _ in tqdm.tqdm(
        in_bar, desc=f"{title} µ {steps}", total=steps, disable=True
    ):  # fmt: skip
        pass
    list(itertools.islice(sliced, steps))
    for _ in zip(first, second, strict=True):
        pass
    for _ in DataLoader(TensorDataset(torch.zeros(steps))):
        pass
    list(loaders["train"])
    list(loaders[steps + 1])
    next(iter(first_batch))
    assert len([*(x for x in unpacked)]) == 1
    list(pass_on(tqdm.tqdm(passed_on, disable=bool(steps))))
    names = [line.name for line in hooked.sink.lines_of(LoaderLine)]
    assert names == ["in_bar", "sliced", "", "", "", "train", "loaders", "first_batch", "unpacked", "batches"]


def made_of(dataset):
    return DataLoader(dataset)


def one_of(loader):
    return loader


def test_a_variable_gives_its_name_only_if_it_holds_the_loader(hooked):
    dataset, my_loader = TensorDataset(torch.zeros(3)), loader_of(3)
    for _ in made_of(dataset):
        pass
    for _ in one_of(my_loader):
        pass
    namespace = {"one_of": one_of, "made_of": made_of, "data": loader_of(3), "train_loader": dataset}
    code = "for _ in one_of(data): pass\nfor _ in made_of(train_loader): pass\n"
    linecache.cache["<script>"] = (len(code), None, code.splitlines(keepends=True), "<script>")
    exec(compile(code, "<script>", "exec"), namespace)
    assert [line.name for line in hooked.sink.lines_of(LoaderLine)] == ["", "my_loader", "data", ""]


def test_a_loader_has_no_name_in_code_without_source(hooked):
    exec("for _ in hidden: pass", {"hidden": loader_of(3)})
    assert [line.name for line in hooked.sink.lines_of(LoaderLine)] == [""]
    assert len(hooked.sink.steps) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_and_iterator_classes_are_the_same_as_without_hooks(workers):
    def batches():
        torch.manual_seed(3)
        loader = DataLoader(TensorDataset(float_range(20)), batch_size=4, shuffle=True, num_workers=workers)
        iterator = iter(loader)
        return type(iterator), torch.cat([x for (x,) in iterator]).tolist()

    without = batches()
    hooked = HookedRun()
    assert batches() == without
    hooked.close()
    assert without[0] is (_MultiProcessingDataLoaderIter if workers else _SingleProcessDataLoaderIter)
    assert len(hooked.sink.steps) == 5
    assert all(step.samples == 4 for step in hooked.sink.steps)


def test_an_epoch_that_is_left_ends_when_its_iterator_is_deleted(hooked):
    for _ in zip(range(2), loader_of(), strict=False):
        pass
    assert hooked.sink.epoch_ends == ["left"]
    assert len(hooked.sink.steps) == 2


def test_an_epoch_whose_iterator_is_kept_ends_with_the_hooks(hooked):
    iterator = iter(loader_of())
    next(iterator)
    hooked.undo()
    hooked.session.flush()
    assert hooked.sink.epoch_ends == ["left"]
    assert len(hooked.sink.steps) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_for_every_batch_has_a_step_with_all_phases(hooked, workers):
    model, loader = Model(), loader_of(num_workers=workers)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        (x,) = next(iter(loader))
        model(x).sum().backward()
        optimizer.step()
    hooked.undo()
    hooked.session.flush()
    steps = hooked.sink.steps
    assert [(step.epoch, step.batch) for step in steps] == [(0, 0), (1, 0), (2, 0)]
    assert all(step.phases.keys() >= STEP_PHASES for step in steps)
    assert all(step.step_s >= step.phases["forward"] + step.phases["backward"] for step in steps)
    assert hooked.sink.epoch_ends == ["left"] * 3


def test_a_new_epoch_of_persistent_workers_ends_the_one_that_was_left(hooked):
    loader = loader_of(num_workers=1, persistent_workers=True)
    for _ in loader:
        break
    list(loader)
    assert hooked.sink.epoch_ends == ["left", "done"]
    assert [step.epoch for step in hooked.sink.steps] == [0, 1, 1, 1, 1]


class RaisingDataset(TensorDataset):
    def __getitem__(self, index):
        if index == 7:
            raise LookupError("seven")
        return super().__getitem__(index)


def test_an_error_of_the_dataset_is_raised_and_ends_the_epoch(hooked):
    with pytest.raises(LookupError, match=r"^seven$"):
        list(DataLoader(RaisingDataset(torch.zeros(9)), batch_size=3))
    assert hooked.sink.epoch_ends == ["raised"]
    assert len(hooked.sink.steps) == 2


def test_the_hooks_keep_no_loader_and_no_worker_alive(hooked):
    loader = loader_of(num_workers=1, persistent_workers=True)
    list(loader)
    workers = loader._iterator._workers
    loader_ref = weakref.ref(loader)
    del loader
    gc.collect()
    assert loader_ref() is None
    assert not any(worker.is_alive() for worker in workers)


def test_time_between_making_the_iterator_and_the_first_batch_is_not_a_wait(hooked):
    clock = hooked.session.clock = FakeClock(hooked.session.clock_start)
    iterator = iter(loader_of())
    clock.sleep(100.0)
    next(iterator)
    clock.sleep(1.0)
    next(iterator)
    hooked.session.flush()
    assert [(step.wait_s, step.step_s) for step in hooked.sink.steps] == [(0.0, 1.0)]


class GeneratorLoader(DataLoader):
    """A DataLoader whose `__iter__` is a generator, as in accelerate."""

    def __iter__(self):
        yield from super().__iter__()


def test_a_subclass_with_its_own_iter_is_recorded_once(hooked):
    assert len(list(GeneratorLoader(TensorDataset(torch.zeros(6)), batch_size=2, num_workers=1))) == 3
    assert len(hooked.sink.steps) == 3
    assert hooked.sink.epoch_ends == ["done"]


def test_a_loader_under_penstock_watch_is_recorded_once(hooked):
    publish_session(hooked.run)
    list(watch(loader_of(), name="mine"))
    assert [line.name for line in hooked.sink.lines_of(LoaderLine)] == ["mine"]
    assert len(hooked.sink.steps) == 4


def test_a_loader_under_penstock_watch_is_recorded_with_its_phases(hooked):
    publish_session(hooked.run)
    train(Model(), watch(loader_of()))
    assert all(step.phases.keys() >= STEP_PHASES for step in hooked.sink.steps)
    assert len(hooked.sink.steps) == 4


@pytest.mark.parametrize("settings", [{}, {"persistent_workers": True}, {"num_workers": 0}], ids=str)
def test_a_penstock_dataloader_is_recorded_and_not_kept_alive(settings):
    loader = penstock.DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=3, **{"num_workers": 1, **settings})
    expected = [batch[0].tolist() for batch in loader]
    hooked = HookedRun()
    try:
        iterator = iter(loader)
        found = [next(iterator)]
        (view,) = hooked.run.loader_views
        workers, lines = view.processes(), view.poll(1.0)
        assert [batch[0].tolist() for batch in [*found, *iterator]] == expected
        train(Model(), loader)
        last = view.poll(2.0)
    finally:
        hooked.close()
    (described,) = hooked.sink.lines_of(LoaderLine)
    engine = loader.num_workers > 0
    assert (described.type, described.settings["batch_size"].in_force) == ("penstock" if engine else "torch", 3)
    assert [step.batch for step in hooked.sink.steps] == [0, 1, 2, 3] * 2
    assert hooked.sink.phase_names == STEP_PHASES
    assert hooked.sink.epoch_ends == ["done", "done"]
    assert len(lines) == engine
    assert len(workers) == loader.num_workers
    if engine:
        assert lines[0].workers == 1
        assert last[0].hops["decode"][0] > lines[0].hops["decode"][0] >= 0
    gone = weakref.ref(loader)
    del loader, iterator, view
    gc.collect()
    assert gone() is None
    assert [batch[0].tolist() for batch in penstock.DataLoader(range(3), num_workers=1)] == [0, 1, 2]


def test_a_penstock_loader_is_recorded_and_not_kept_alive(tmp_path):
    shards = make_shards(tmp_path, REID, samples=12, shards=1, scale=0.1)
    loader = penstock.Loader(shards, {"meta": penstock.Json(".json")}, batch_size=4, num_workers=1)
    hooked = HookedRun()
    model = nn.Linear(4, 1)
    for _ in loader:
        model(torch.zeros(1, 4)).sum().backward()
    for _ in loader:
        break
    loader_ref = weakref.ref(loader)
    loader.close()
    hooked.run._poll()
    del loader
    gc.collect()
    assert loader_ref() is None
    hooked.run._poll()
    assert not hooked.session.off
    hooked.close()
    assert [(line.type, line.name) for line in hooked.sink.lines_of(LoaderLine)] == [("penstock", "loader")]
    assert len(hooked.sink.steps) == 4
    assert hooked.sink.lines_of(HopsLine)
    assert all({"forward", "backward"} <= set(step.phases) for step in hooked.sink.steps[:3])
    assert hooked.sink.epoch_ends == ["done", "left"]


# -- phases --------------------------------------------------------------------------------------------------------


def test_every_step_has_the_outermost_phases_only(hooked):
    train(Model(), loader_of(30))
    assert len(hooked.sink.steps) == 10
    for step in hooked.sink.steps:
        assert set(step.phases) - {"sampler"} == STEP_PHASES
        assert sum(step.phases.values()) <= step.step_s + step.phases.get("sampler", 0.0)


def test_only_the_outermost_module_class_is_patched(hooked):
    train(Model(), loader_of(30))
    assert "__call__" in vars(Model)
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl
    assert not any("__call__" in vars(module_class) for module_class in (nn.Linear, nn.Sequential, nn.ReLU))


def test_a_module_that_is_called_only_later_is_found(hooked):
    model, late = nn.Linear(4, 1), Model()
    for step, (x,) in enumerate(loader_of(1600, batch_size=2)):
        model(x)
        if step > 100:
            late(x)
    assert "__call__" in vars(Model)


def test_modules_are_searched_for_again_after_steps_without_a_forward_pass(hooked):
    late = Model()
    for step, (x,) in enumerate(loader_of(60, batch_size=2)):
        if step > 10:
            late(x)
    assert ["forward" in step.phases for step in hooked.sink.steps][-5:] == [True] * 5


class CountingModule(nn.Module):
    calls = 0

    def __call__(self, *args):
        CountingModule.calls += 1
        return super().__call__(*args)

    def forward(self, x):
        return x


class InheritingModule(CountingModule):
    pass


@pytest.mark.parametrize("model_class", [CountingModule, InheritingModule])
def test_a_modules_own_call_method_is_called_once_per_step(hooked, model_class):
    CountingModule.calls, model = 0, model_class()
    for (x,) in loader_of():
        model(x)
    assert CountingModule.calls == 4
    assert "forward" in hooked.sink.phase_names


def test_a_model_class_pickled_by_value_needs_nothing_of_penstock(hooked):
    """Copy the patched `__call__` as cloudpickle does: by its code and by the values in its closure."""
    train(model := Model(), loader_of())
    call = Model.__call__
    closure = dict(zip(call.__code__.co_freevars, (cell.cell_contents for cell in call.__closure__), strict=True))
    closure |= pickle.loads(pickle.dumps({name: closure[name] for name in ("forward", "session")}))
    classes = [value if isinstance(value, type) else type(value) for value in closure.values()]
    assert not any("penstock" in each.__module__ for each in classes)
    cells = tuple(map(types.CellType, closure.values()))
    copied_call = types.FunctionType(call.__code__, call.__globals__, closure=cells)
    hooked.undo()
    assert copied_call(model, torch.ones(2, 4)).shape == (2, 1)


def test_copies_and_checkpoints_of_a_model_contain_nothing_of_penstock(hooked):
    model = Model()
    train(model, loader_of())
    file = io.BytesIO()
    torch.save(model, file)
    assert b"penstock" not in file.getvalue()
    assert vars(copy.deepcopy(model)).keys() == vars(model).keys()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("compiled", ["module", "module in place", "function"])
def test_models_can_be_compiled_without_graph_breaks_and_train_the_same(hooked, compiled):
    torch._dynamo.reset()
    model, uncompiled_model = Model(), Model()
    uncompiled_model.load_state_dict(model.state_dict())
    if compiled == "module in place":
        model.compile(backend="eager", fullgraph=True)
        forward = model
    else:
        forward = model if compiled == "module" else lambda x: model(x)
        forward = torch.compile(forward, backend="eager", fullgraph=True)
    torch.manual_seed(1)
    loader = loader_of()
    train(model, loader, forward)
    train(uncompiled_model, loader)
    parameters = zip(model.parameters(), uncompiled_model.parameters(), strict=True)
    assert all(torch.allclose(trained, expected, rtol=1e-5) for trained, expected in parameters)
    compiled_steps = [step for step in hooked.sink.steps if step.epoch == 0]
    assert all("backward" in step.phases for step in compiled_steps)
    if compiled != "function":  # a compiled function is not a module, so its time is in no phase
        assert "forward" in compiled_steps[-1].phases
    torch._dynamo.reset()


def test_module_calls_in_other_threads_and_in_the_dataset_are_not_phases(hooked):
    transform = Model()

    class TransformedDataset(TensorDataset):
        def __getitem__(self, index):
            return transform(super().__getitem__(index)[0])

    for x in DataLoader(TransformedDataset(torch.randn(6, 4)), batch_size=2):
        thread = threading.Thread(target=nn.Sequential(nn.Identity()), args=(x,))
        thread.start()
        thread.join()
    assert hooked.sink.phase_names <= {"sampler"}


def test_an_evaluation_within_a_step_is_a_phase_of_it(hooked):
    model, inner = Model(), loader_of(3)
    for number, (x,) in enumerate(loader_of(6)):
        if number == 0:
            for (y,) in inner:
                model(y)
        model(x)
    outer = [step for step in hooked.sink.steps if step.loader == 0]
    assert ["evaluation" in step.phases for step in outer] == [True, False]
    assert all("forward" in step.phases for step in hooked.sink.steps)


def test_phases_after_an_optimizer_error_are_recorded_as_usual(hooked):
    class RaisesOnce(torch.optim.SGD):
        raised = False

        def step(self, closure=None):
            if not self.raised:
                self.raised = True
                raise ArithmeticError
            return super().step(closure)

    model = nn.Linear(4, 1)
    optimizer = RaisesOnce(model.parameters(), 0.1)
    for (x,) in loader_of():
        model(x).sum().backward()
        try:
            optimizer.step()
        except ArithmeticError:
            continue
    assert hooked.sink.phase_names - {"sampler"} == STEP_PHASES


# -- pauses --------------------------------------------------------------------------------------------------------


def test_checkpoints_collections_and_logs_are_phases_and_the_first_two_are_events(hooked, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.watcher.gc_watch.MIN_EVENT_S", 0.0)

    class SyncingHandler(logging.FileHandler):
        def emit(self, record):
            super().emit(record)
            os.fsync(self.stream.fileno())

    handler = SyncingHandler(tmp_path / "train.log")
    logger = logging.getLogger("training script")
    logger.addHandler(handler)
    for _ in loader_of(3):
        torch.save({"a": 1}, tmp_path / "model.pt")
        gc.collect()
        logger.warning("loss is falling")
    logger.removeHandler(handler)
    handler.close()
    (step,) = hooked.sink.steps
    assert set(step.phases) - {"sampler"} == {"checkpoint", "gc", "log"}
    assert {event.what for event in hooked.sink.lines_of(EventLine)} >= {"checkpoint", "gc"}
    assert "falling" in (tmp_path / "train.log").read_text()


def test_pickling_a_tensor_is_not_a_checkpoint(hooked):
    for (x,) in loader_of():
        pickle.loads(pickle.dumps(x))
    assert "checkpoint" not in hooked.sink.phase_names
    assert "checkpoint" not in [line.what for line in hooked.sink.lines_of(EventLine)]


def test_a_checkpoint_between_epochs_is_an_event(hooked, tmp_path):
    list(loader_of(3))
    torch.save({"a": 1}, tmp_path / "model.pt")
    assert "checkpoint" in [event.what for event in hooked.sink.lines_of(EventLine)]


# -- the GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "phase"),
    [
        (lambda x: x.sum().item(), "sync"),
        (lambda x: float(x.sum()), "sync"),
        (lambda x: bool(x.sum() > 0), "sync"),
        (lambda x: x.tolist(), "sync"),
        (lambda x: x.cpu(), "sync"),
        (lambda x: x.to("cpu"), "sync"),
        (lambda x: x.to(device=torch.device("cpu")), "sync"),
        (lambda x: x.to("meta"), None),
        (lambda x: x.to(torch.float64), None),
    ],
)
def test_operations_that_wait_for_the_gpu_are_phases(hooked, operation, phase):
    patches = Patches()
    watch_device(PhaseHooks(hooked.session), patches, InUse(hooked.session), on_device=lambda tensor: True)
    for (x,) in loader_of(3):
        operation(x)
    patches.undo()
    assert hooked.sink.phase_names - {"sampler"} == ({phase} if phase else set())


def test_copies_to_the_gpu_are_phases_and_tensors_in_host_memory_do_not_wait(hooked):
    patches = Patches()
    watch_device(PhaseHooks(hooked.session), patches, InUse(hooked.session))
    for (x,) in loader_of(3):
        assert x.sum().item() == float(x.sum())
        assert x.to("meta", non_blocking=True).device.type == "meta"
    patches.undo()
    assert hooked.sink.phase_names - {"sampler"} == {"h2d"}
    assert "item" not in vars(torch.Tensor)


# -- installing and removing --------------------------------------------------------------------------------------


def patchable_state():
    """Return the attributes and hooks that the watcher patches, in a form that can be compared."""
    owners = [nn.Module, Model, nn.Linear, DataLoader, torch.Tensor, torch.autograd, torch.cuda, logging.Handler]
    owners += [torch.utils.data.dataloader._BaseDataLoaderIter, torch.serialization]
    names = [(id(owner), name, id(value)) for owner in owners for name, value in vars(owner).items()]
    hooks = [*torch_optimizer._global_optimizer_pre_hooks, *torch_optimizer._global_optimizer_post_hooks]
    return sorted(names), hooks, list(gc.callbacks), torch.save, os.fsync


def test_undo_restores_torch():
    first = HookedRun()  # torch creates some attributes when they are first used
    train(Model(), loader_of(30))
    first.close()
    before = patchable_state()
    hooked = HookedRun()
    train(Model(), loader_of(30))
    assert patchable_state() != before
    hooked.undo()
    hooked.undo()
    hooked.run.close()
    assert patchable_state() == before


def test_a_forked_worker_has_torch_without_patches(hooked):
    train(Model(), loader_of(3))
    dataset = SourceFiles(torch.zeros(1))
    (files,) = DataLoader(dataset, num_workers=1, batch_size=None, multiprocessing_context="fork")
    assert not any("penstock" in file for file in files)


class SourceFiles(TensorDataset):
    """Its samples are the source files of functions that the hooks patch, in the process that makes the sample."""

    def __getitem__(self, index):
        functions = (DataLoader.__iter__, Model.__call__, nn.Module.__call__, torch.save, torch.autograd.backward)
        return [function.__code__.co_filename for function in functions]


def test_an_error_of_the_watcher_turns_it_off_and_the_training_goes_on(hooked, caplog):
    def put(line):
        if isinstance(line, StepLine) and line.batch == 1:
            raise ZeroDivisionError

    hooked.sink.put = put
    model = Model()
    before = model.inner[0].weight.clone()
    train(model, loader_of(30))
    assert hooked.session.off
    assert not torch.equal(model.inner[0].weight, before)
    assert "watching stopped: ZeroDivisionError" in caplog.text
