import copy
import functools
import gc
import io
import itertools
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
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.start import WatchedRun
from penstock.watcher.watch import watch

data_of = functools.partial(torch.arange, dtype=torch.float32)


class Lines:
    """A sink that keeps what it gets."""

    def __init__(self):
        self.all = []

    def put(self, line):
        self.all.append(line)

    def close(self):
        pass

    def of(self, kind):
        return [line for line in self.all if isinstance(line, kind)]

    @property
    def phases(self):
        """Of all steps together."""
        return {name for step in self.of(StepLine) for name in step.phases}


class Watched:
    def __init__(self):
        self.lines = Lines()
        self.watching = WatchedRun(None, [self.lines])
        self.session = self.watching.session
        self.undo = install(self.watching)


@pytest.fixture
def watched():
    it = Watched()
    yield it
    it.undo()
    it.watching.close()


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1)))

    def forward(self, x):
        return self.inner(x)


def loader_of(samples=12, **settings):
    return DataLoader(TensorDataset(torch.randn(samples, 4)), **{"batch_size": 3, **settings})


def train(model, loader, calls=None):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in loader:
        optimizer.zero_grad()
        (model if calls is None else calls)(x).sum().backward()
        optimizer.step()


def ends(watched):
    return [line.how for line in watched.lines.of(EpochEndLine)]


# -- loaders -------------------------------------------------------------------------------------------------------


def test_loaders_are_numbered_and_called_what_the_script_calls_them(watched):
    train_loader, other = loader_of(shuffle=True), loader_of()
    for _ in range(2):
        list(train_loader)
        list(other)
    assert [(line.loader, line.name, line.type) for line in watched.lines.of(LoaderLine)] == [
        (0, "train_loader", "torch"),
        (1, "other", "torch"),
    ]
    assert [(line.loader, line.epoch) for line in watched.lines.of(EpochStartLine)] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert ends(watched) == ["done"] * 4
    assert len(watched.lines.of(StepLine)) == 16


def test_names_come_from_the_code_that_iterates(watched):
    class Trainer:
        val_loader = loader_of(3)

    deep, barred = loader_of(3), loader_of(3)
    for _ in Trainer.val_loader:
        pass
    for _ in enumerate(deep, 1):
        pass
    for _ in tqdm.tqdm(enumerate(barred), desc="epoch", disable=True):
        pass
    assert [line.name for line in watched.lines.of(LoaderLine)] == ["val_loader", "deep", "barred"]


def handed_on(batches):
    yield from batches


def test_other_names_in_the_expression_are_not_the_loaders(watched):
    steps, title, loaders = 2, "epoch", {"train": loader_of(3), 3: loader_of(3)}
    described, cut, first, second, drawn, spread, handed = (loader_of(3) for _ in range(7))
    for _ in tqdm.tqdm(
        described, desc=f"{title} µ {steps}", total=steps, disable=True
    ):  # fmt: skip
        pass
    list(itertools.islice(cut, steps))
    for _ in zip(first, second, strict=True):
        pass
    for _ in DataLoader(TensorDataset(torch.zeros(steps))):
        pass
    list(loaders["train"])
    list(loaders[steps + 1])
    next(iter(drawn))
    assert len([*(x for x in spread)]) == 1
    list(handed_on(tqdm.tqdm(handed, disable=bool(steps))))
    names = [line.name for line in watched.lines.of(LoaderLine)]
    assert names == ["described", "cut", "", "", "", "train", "loaders", "drawn", "spread", "batches"]


def test_code_without_source_has_no_names(watched):
    exec("for _ in hidden: pass", {"hidden": loader_of(3)})
    assert [line.name for line in watched.lines.of(LoaderLine)] == [""]
    assert len(watched.lines.of(StepLine)) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_and_iterators_are_torchs_own(workers):
    def batches():
        torch.manual_seed(3)
        loader = DataLoader(TensorDataset(data_of(20)), batch_size=4, shuffle=True, num_workers=workers)
        iterator = iter(loader)
        return type(iterator), torch.cat([x for (x,) in iterator]).tolist()

    without = batches()
    it = Watched()
    assert batches() == without
    it.undo()
    it.watching.close()
    assert without[0] is (_MultiProcessingDataLoaderIter if workers else _SingleProcessDataLoaderIter)
    assert len(it.lines.of(StepLine)) == 5
    assert all(step.samples == 4 for step in it.lines.of(StepLine))


def test_a_pass_that_is_left_ends_when_its_iterator_goes(watched):
    for _ in zip(range(2), loader_of(), strict=False):
        pass
    assert ends(watched) == ["left"]
    assert len(watched.lines.of(StepLine)) == 2


def test_a_pass_that_is_held_to_the_end_is_left(watched):
    iterator = iter(loader_of())
    next(iterator)
    watched.undo()
    watched.session.settle()
    assert ends(watched) == ["left"]
    assert len(watched.lines.of(StepLine)) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_for_every_batch_has_its_step_with_all_its_phases(watched, workers):
    model, loader = Plain(), loader_of(num_workers=workers)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        (x,) = next(iter(loader))
        model(x).sum().backward()
        optimizer.step()
    watched.undo()
    watched.session.settle()
    steps = watched.lines.of(StepLine)
    assert [(step.epoch, step.batch) for step in steps] == [(0, 0), (1, 0), (2, 0)]
    assert all({"forward", "backward", "optimizer"} <= step.phases.keys() for step in steps)
    assert all(step.step_s >= step.phases["forward"] + step.phases["backward"] for step in steps)
    assert ends(watched) == ["left"] * 3


def test_persistent_workers_that_start_anew_have_left_the_pass_before(watched):
    loader = loader_of(num_workers=1, persistent_workers=True)
    for _ in loader:
        break
    list(loader)
    assert ends(watched) == ["left", "done"]
    assert [step.epoch for step in watched.lines.of(StepLine)] == [0, 1, 1, 1, 1]


class Broken(TensorDataset):
    def __getitem__(self, index):
        if index == 7:
            raise LookupError("seven")
        return super().__getitem__(index)


def test_an_error_of_the_dataset_comes_through_and_ends_the_pass(watched):
    with pytest.raises(LookupError, match=r"^seven$"):
        list(DataLoader(Broken(torch.zeros(9)), batch_size=3))
    assert ends(watched) == ["raised"]
    assert len(watched.lines.of(StepLine)) == 2


def test_a_loader_is_not_kept_alive(watched):
    loader = loader_of(num_workers=1, persistent_workers=True)
    list(loader)
    workers = loader._iterator._workers
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    assert not any(worker.is_alive() for worker in workers)


def test_starting_workers_counts_as_waiting_but_dawdling_does_not(watched):
    clock = watched.session.clock = FakeClock(watched.session.began)
    iterator = iter(loader_of())
    clock.sleep(100.0)
    next(iterator)
    clock.sleep(1.0)
    next(iterator)
    watched.session.settle()
    assert [(step.wait_s, step.step_s) for step in watched.lines.of(StepLine)] == [(0.0, 1.0)]


class Generating(DataLoader):
    """As accelerate's do."""

    def __iter__(self):
        yield from super().__iter__()


def test_a_subclass_with_an_iter_of_its_own_is_watched_once(watched):
    assert len(list(Generating(TensorDataset(torch.zeros(6)), batch_size=2, num_workers=1))) == 3
    assert len(watched.lines.of(StepLine)) == 3
    assert ends(watched) == ["done"]


def test_a_loader_under_penstock_watch_is_watched_once(watched):
    publish_session(watched.watching)
    list(watch(loader_of(), name="mine"))
    assert [line.name for line in watched.lines.of(LoaderLine)] == ["mine"]
    assert len(watched.lines.of(StepLine)) == 4


def test_a_loader_under_penstock_watch_has_the_phases_of_its_steps(watched):
    publish_session(watched.watching)
    train(Plain(), watch(loader_of()))
    assert all({"forward", "backward", "optimizer"} <= step.phases.keys() for step in watched.lines.of(StepLine))
    assert len(watched.lines.of(StepLine)) == 4


def test_a_penstock_loader_is_watched_and_not_kept_alive(tmp_path):
    shards = make_shards(tmp_path, REID, samples=12, shards=1, scale=0.1)
    loader = penstock.Loader(shards, {"meta": penstock.Json(".json")}, batch_size=4, num_workers=1)
    it = Watched()
    model = nn.Linear(4, 1)
    for _ in loader:
        model(torch.zeros(1, 4)).sum().backward()
    for _ in loader:
        break
    gone = weakref.ref(loader)
    loader.close()
    it.watching._poll()
    del loader
    gc.collect()
    assert gone() is None
    it.watching._poll()
    assert not it.session.off
    it.undo()
    it.watching.close()
    assert [(line.type, line.name) for line in it.lines.of(LoaderLine)] == [("penstock", "loader")]
    assert len(it.lines.of(StepLine)) == 4
    assert it.lines.of(HopsLine)
    assert all({"forward", "backward"} <= set(step.phases) for step in it.lines.of(StepLine)[:3])
    assert ends(it) == ["done", "left"]


# -- phases --------------------------------------------------------------------------------------------------------


def test_steps_have_their_phases_and_inner_modules_are_no_phases(watched):
    train(Plain(), loader_of(30))
    assert len(watched.lines.of(StepLine)) == 10
    for step in watched.lines.of(StepLine):
        assert set(step.phases) - {"sampler"} == {"forward", "backward", "optimizer"}
        assert sum(step.phases.values()) <= step.step_s + step.phases.get("sampler", 0.0)


def test_only_the_outermost_class_is_touched(watched):
    train(Plain(), loader_of(30))
    assert "__call__" in vars(Plain)
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl
    assert not any("__call__" in vars(kind) for kind in (nn.Linear, nn.Sequential, nn.ReLU))


def test_a_module_that_joins_later_is_found(watched):
    model, late = nn.Linear(4, 1), Plain()
    for step, (x,) in enumerate(loader_of(600, batch_size=2)):
        model(x)
        if step > 100:
            late(x)
    assert "__call__" in vars(Plain)


def test_a_step_without_a_forward_makes_us_look_again(watched):
    late = Plain()
    for step, (x,) in enumerate(loader_of(60, batch_size=2)):
        if step > 10:
            late(x)
    assert ["forward" in step.phases for step in watched.lines.of(StepLine)][-5:] == [True] * 5


class Counting(nn.Module):
    calls = 0

    def __call__(self, *args):
        Counting.calls += 1
        return super().__call__(*args)

    def forward(self, x):
        return x


class Heir(Counting):
    pass


@pytest.mark.parametrize("kind", [Counting, Heir])
def test_a_call_of_its_own_is_called_once(watched, kind):
    Counting.calls, model = 0, kind()
    for (x,) in loader_of():
        model(x)
    assert Counting.calls == 4
    assert "forward" in watched.lines.phases


def test_a_class_that_is_pickled_whole_carries_nothing_of_ours(watched):
    """As cloudpickle does it with a script's own: the code of its functions, and what they refer to."""
    train(model := Plain(), loader_of())
    ours = Plain.__call__
    cells = dict(zip(ours.__code__.co_freevars, (cell.cell_contents for cell in ours.__closure__), strict=True))
    cells |= pickle.loads(pickle.dumps({name: cells[name] for name in ("forward", "session")}))
    kinds = [value if isinstance(value, type) else type(value) for value in cells.values()]
    assert not any("penstock" in kind.__module__ for kind in kinds)
    elsewhere = types.FunctionType(ours.__code__, ours.__globals__, closure=tuple(map(types.CellType, cells.values())))
    watched.undo()
    assert elsewhere(model, torch.ones(2, 4)).shape == (2, 1)


def test_a_model_carries_nothing_of_ours_into_copies_and_checkpoints(watched):
    model = Plain()
    train(model, loader_of())
    file = io.BytesIO()
    torch.save(model, file)
    assert b"penstock" not in file.getvalue()
    assert vars(copy.deepcopy(model)).keys() == vars(model).keys()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("how", ["module", "in place", "function"])
def test_compiled_models_compile_as_before(watched, how):
    torch._dynamo.reset()
    model, twin = Plain(), Plain()
    twin.load_state_dict(model.state_dict())
    if how == "in place":
        model.compile(backend="eager", fullgraph=True)
        calls = model
    else:
        wanted = model if how == "module" else lambda x: model(x)
        calls = torch.compile(wanted, backend="eager", fullgraph=True)
    torch.manual_seed(1)
    loader = loader_of()
    train(model, loader, calls)
    train(twin, loader)
    assert all(torch.allclose(a, b, rtol=1e-5) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    first = [step for step in watched.lines.of(StepLine) if step.epoch == 0]
    assert all("backward" in step.phases for step in first)
    if how != "function":  # a compiled function is no module: its time is in the rest
        assert "forward" in first[-1].phases
    torch._dynamo.reset()


def test_modules_of_other_threads_and_of_the_dataset_are_not_the_steps(watched):
    transform = Plain()

    class Transformed(TensorDataset):
        def __getitem__(self, index):
            return transform(super().__getitem__(index)[0])

    for x in DataLoader(Transformed(torch.randn(6, 4)), batch_size=2):
        thread = threading.Thread(target=nn.Sequential(nn.Identity()), args=(x,))
        thread.start()
        thread.join()
    assert watched.lines.phases <= {"sampler"}


def test_an_evaluation_inside_a_step_is_a_pause_of_it(watched):
    model, inner = Plain(), loader_of(3)
    for number, (x,) in enumerate(loader_of(6)):
        if number == 0:
            for (y,) in inner:
                model(y)
        model(x)
    outer = [step for step in watched.lines.of(StepLine) if step.loader == 0]
    assert ["evaluation" in step.phases for step in outer] == [True, False]
    assert all("forward" in step.phases for step in watched.lines.of(StepLine))


def test_an_optimizer_that_raises_leaves_no_phase_open(watched):
    class Once(torch.optim.SGD):
        raised = False

        def step(self, closure=None):
            if not self.raised:
                self.raised = True
                raise ArithmeticError
            return super().step(closure)

    model = nn.Linear(4, 1)
    optimizer = Once(model.parameters(), 0.1)
    for (x,) in loader_of():
        model(x).sum().backward()
        try:
            optimizer.step()
        except ArithmeticError:
            continue
    assert watched.lines.phases - {"sampler"} == {"forward", "backward", "optimizer"}


# -- pauses --------------------------------------------------------------------------------------------------------


def test_checkpoints_collections_and_logs_are_told(watched, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.watcher.gc_watch.TOLD_S", 0.0)

    class Syncing(logging.FileHandler):
        def emit(self, record):
            super().emit(record)
            os.fsync(self.stream.fileno())

    handler = Syncing(tmp_path / "train.log")
    logger = logging.getLogger("a script's")
    logger.addHandler(handler)
    for _ in loader_of(3):
        torch.save({"a": 1}, tmp_path / "model.pt")
        gc.collect()
        logger.warning("loss is falling")
    logger.removeHandler(handler)
    handler.close()
    (step,) = watched.lines.of(StepLine)
    assert set(step.phases) - {"sampler"} == {"checkpoint", "gc", "log"}
    assert {event.what for event in watched.lines.of(EventLine)} >= {"checkpoint", "gc"}
    assert "falling" in (tmp_path / "train.log").read_text()


def test_a_tensor_that_is_pickled_is_no_checkpoint(watched):
    for (x,) in loader_of():
        pickle.loads(pickle.dumps(x))
    assert "checkpoint" not in watched.lines.phases
    assert "checkpoint" not in [line.what for line in watched.lines.of(EventLine)]


def test_a_checkpoint_between_passes_is_an_event(watched, tmp_path):
    list(loader_of(3))
    torch.save({"a": 1}, tmp_path / "model.pt")
    assert "checkpoint" in [event.what for event in watched.lines.of(EventLine)]


# -- the device ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asks", "phase"),
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
def test_waits_for_the_device_are_phases(watched, asks, phase):
    patches = Patches()
    watch_device(PhaseHooks(watched.session), patches, on_device=lambda tensor: True)
    for (x,) in loader_of(3):
        asks(x)
    patches.undo()
    assert watched.lines.phases - {"sampler"} == ({phase} if phase else set())


def test_copies_to_the_device_are_phases_and_the_hosts_tensors_pass(watched):
    patches = Patches()
    watch_device(PhaseHooks(watched.session), patches)
    for (x,) in loader_of(3):
        assert x.sum().item() == float(x.sum())
        assert x.to("meta", non_blocking=True).device.type == "meta"
    patches.undo()
    assert watched.lines.phases - {"sampler"} == {"h2d"}
    assert "item" not in vars(torch.Tensor)


# -- in and out ----------------------------------------------------------------------------------------------------


def torch_as_it_is():
    owners = [nn.Module, Plain, nn.Linear, DataLoader, torch.Tensor, torch.autograd, torch.cuda, logging.Handler]
    owners += [torch.utils.data.dataloader._BaseDataLoaderIter, torch.serialization]
    names = [(id(owner), name, id(value)) for owner in owners for name, value in vars(owner).items()]
    hooks = [*torch_optimizer._global_optimizer_pre_hooks, *torch_optimizer._global_optimizer_post_hooks]
    return sorted(names), hooks, list(gc.callbacks), torch.save, os.fsync


def test_everything_is_undone():
    first = Watched()  # some of torch is made when it is first used
    train(Plain(), loader_of(30))
    first.undo()
    first.watching.close()
    before = torch_as_it_is()
    it = Watched()
    train(Plain(), loader_of(30))
    assert torch_as_it_is() != before
    it.undo()
    it.undo()
    it.watching.close()
    assert torch_as_it_is() == before


def test_a_forked_worker_finds_torch_as_it_was(watched):
    train(Plain(), loader_of(3))
    (found,) = DataLoader(Modules(torch.zeros(1)), num_workers=1, batch_size=None, multiprocessing_context="fork")
    assert not any("penstock" in name for name in found)


class Modules(TensorDataset):
    def __getitem__(self, index):
        return [
            each.__code__.co_filename
            for each in (DataLoader.__iter__, Plain.__call__, nn.Module.__call__, torch.save, torch.autograd.backward)
        ]


def test_an_error_of_the_watcher_ends_the_watching_and_not_the_training(watched, caplog):
    def put(line):
        if isinstance(line, StepLine) and line.batch == 1:
            raise ZeroDivisionError

    watched.lines.put = put
    model = Plain()
    before = model.inner[0].weight.clone()
    train(model, loader_of(30))
    assert watched.session.off
    assert not torch.equal(model.inner[0].weight, before)
    assert "watching stopped: ZeroDivisionError" in caplog.text
