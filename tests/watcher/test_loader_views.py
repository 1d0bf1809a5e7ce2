from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from penstock.core.hops import Hop
from penstock.core.stats import EngineStats, GpuTimes, LoaderStats
from penstock.watcher.dataloader.main_process import TorchLoaderView
from penstock.watcher.dataloader.worker_files import WorkerFiles
from penstock.watcher.loader_views import (
    UNKNOWN_STATE,
    UNKNOWN_WAIT,
    PenstockLoaderView,
    PlainLoaderView,
    count_samples,
    view_of,
)


class RaggedBatch:
    """A batch whose shape raises, like that of torch's nested tensors."""

    @property
    def shape(self):
        raise RuntimeError("NestedTensorImpl doesn't support sizes")


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(8, 3), 8),
        (np.zeros((5, 2)), 5),
        ([torch.zeros(8, 3), torch.zeros(8)], 8),
        ((torch.zeros(8, 3), ["a"] * 8), 8),
        ({"image": torch.zeros(4, 3), "label": torch.zeros(4)}, 4),
        (UserDict(ids=torch.zeros(6, 2)), 6),
        ({"inputs": {"ids": torch.zeros(7, 2)}}, 7),
        ([1, 2, 3], 3),
        (["a", "b"], 2),
        ([{"image": torch.zeros(3, 9, 9)}] * 5, 5),  # collate_fn=lambda samples: samples
        (torch.tensor(1.0), None),
        (np.float32(1.0), None),
        ([], None),
        ({}, None),
        (None, None),
        (7, None),
        ("text", None),
        (object(), None),
        ([[[[[[1]]]]]], None),
        (SimpleNamespace(shape="wide"), None),
        (SimpleNamespace(shape=lambda: (3,)), None),
        (RaggedBatch(), None),
        ([RaggedBatch(), torch.zeros(3)], None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_samples_are_counted_if_the_batch_has_a_length(batch, samples):
    assert count_samples(batch) == samples


class RaisingLength:
    def __len__(self):
        raise ValueError("the length is not known yet")

    def __iter__(self):
        return iter(())


def test_any_iterable_is_described_by_its_class_and_length():
    view = view_of([1, 2, 3], 4, "train", WorkerFiles(), 0.0)
    assert isinstance(view, PlainLoaderView)
    line = view.describe()
    assert (line.loader, line.name, line.type) == (4, "train", "iterable")
    assert (line.dataset, line.batches) == ("builtins.list", 3)
    assert list(view.iterator(0)) == [1, 2, 3]
    assert (view.state(iter(())), view.wait_parts(iter(()))) == (UNKNOWN_STATE, UNKNOWN_WAIT)
    assert (view.processes(), view.poll(0.0)) == ({}, ())


@pytest.mark.parametrize("loader", [RaisingLength(), (number for number in ())])
def test_a_loader_without_a_length_has_no_number_of_batches(loader):
    assert view_of(loader, 0, "", WorkerFiles(), 0.0).describe().batches is None


def test_a_dataloader_and_its_subclasses_get_the_view_of_torch():
    class Subclass(DataLoader):
        pass

    for loader_class in (DataLoader, Subclass):
        view = view_of(loader_class([1, 2, 3], batch_size=2), 0, "", WorkerFiles(), 0.0)
        assert isinstance(view, TorchLoaderView)
        assert view.describe().settings["batch_size"].in_force == 2


# -- penstock.Loader -----------------------------------------------------------------------------------------------


class FakePenstockLoader:
    """Has the attributes of a penstock.Loader that the watcher reads."""

    batch_size, num_workers, drop_last = 4, 2, False
    changes = ()
    gpu_times = None

    def __len__(self):
        return 9

    def stats(self):
        engine = EngineStats(
            read=Hop("read", 1.0, 2.0, 3.0), workers=2, readers=3, lookahead=4, ready_batches=1, bytes_read=77,
            changes=self.changes,
        )  # fmt: skip
        return LoaderStats(0, 0, 0, 0, 0, 0, Hop("deliver"), Hop("step", 5.0), engine, self.gpu_times)


def test_a_penstock_loader_is_described_and_reports_its_hops():
    view = PenstockLoaderView(FakePenstockLoader(), 3, "train")
    line = view.describe()
    assert (line.type, line.batches, line.settings["num_workers"].in_force) == ("penstock", 9, 2)
    (hops,) = view.poll(1.5)
    assert (hops.loader, hops.at_s, hops.workers, hops.readers, hops.lookahead, hops.ready) == (3, 1.5, 2, 3, 4, 1)
    assert hops.hops["read"] == (1.0, 2.0, 3.0)
    assert list(hops.hops) == ["read", "decode", "deliver", "step"]
    assert hops.bytes_read == 77


def test_each_change_is_reported_once_although_the_engine_keeps_only_the_latest():
    loader = FakePenstockLoader()
    view = PenstockLoaderView(loader, 0, "")
    reported = []
    for loader.changes in [(), ("a",), ("a", "b"), ("b", "c"), ("b", "c"), ("x", "y"), ()]:
        reported.append(view.poll(0.0)[0].changes)
    assert reported == [(), ("a",), ("b",), ("c",), (), ("x", "y"), ()]


def test_the_gpu_times_of_a_penstock_loader_are_recorded():
    loader = FakePenstockLoader()
    view = PenstockLoaderView(loader, 0, "train")
    assert view.poll(1.0)[0].gpu_times is None
    loader.gpu_times = GpuTimes(3.0, 1.0, 2.0)
    assert view.poll(2.0)[0].gpu_times == (3.0, 1.0, 2.0)
