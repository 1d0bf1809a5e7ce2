"""What each kind of loader shows of itself, and what a batch counts."""

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
from penstock.watcher.loader_views import NOTHING, UNKNOWN, PenstockLoaderView, PlainLoaderView, count_samples, view_of


class Ragged:
    """As torch's nested tensors."""

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
        (Ragged(), None),
        ([Ragged(), torch.zeros(3)], None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_samples_are_counted_where_a_batch_has_a_length(batch, samples):
    assert count_samples(batch) == samples


class NoLength:
    def __len__(self):
        raise ValueError("ask me later")

    def __iter__(self):
        return iter(())


def test_any_iterable_is_described_by_its_class_and_length(tmp_path):
    side = view_of([1, 2, 3], 4, "train", WorkerFiles(), 0.0)
    assert isinstance(side, PlainLoaderView)
    line = side.describe()
    assert (line.loader, line.name, line.type, line.dataset, line.batches) == (
        4,
        "train",
        "iterable",
        "builtins.list",
        3,
    )
    assert list(side.iterator(0)) == [1, 2, 3]
    assert (side.look(iter(())), side.parts(iter(())), side.processes(), side.poll(0.0)) == (NOTHING, UNKNOWN, {}, ())


@pytest.mark.parametrize("loader", [NoLength(), (number for number in ())])
def test_a_loader_without_a_length_has_none(loader):
    assert view_of(loader, 0, "", WorkerFiles(), 0.0).describe().batches is None


def test_a_dataloader_is_known_by_its_class_or_a_subclass():
    class Mine(DataLoader):
        pass

    for kind in (DataLoader, Mine):
        side = view_of(kind([1, 2, 3], batch_size=2), 0, "", WorkerFiles(), 0.0)
        assert isinstance(side, TorchLoaderView)
        assert side.describe().settings["batch_size"].in_force == 2


# -- our own -------------------------------------------------------------------------------------------------------


class Loader:
    """Stands for a penstock.Loader: only what the watcher asks of it."""

    batch_size, num_workers, drop_last = 4, 2, False
    changes = ()

    def __len__(self):
        return 9

    def stats(self):
        engine = EngineStats(
            read=Hop("read", 1.0, 2.0, 3.0), workers=2, readers=3, lookahead=4, ready_batches=1, bytes_read=77,
            changes=self.changes,
        )  # fmt: skip
        return LoaderStats(0, 0, 0, 0, 0, 0, Hop("deliver"), Hop("step", 5.0), engine)


def test_our_loader_shows_its_settings_and_its_hops():
    side = PenstockLoaderView(Loader(), 3, "train")
    line = side.describe()
    assert (line.type, line.batches, line.settings["num_workers"].in_force) == ("penstock", 9, 2)
    (hops,) = side.poll(1.5)
    assert (hops.loader, hops.at_s, hops.workers, hops.readers, hops.lookahead, hops.ready) == (3, 1.5, 2, 3, 4, 1)
    assert hops.hops["read"] == (1.0, 2.0, 3.0)
    assert list(hops.hops) == ["read", "decode", "deliver", "step"]
    assert hops.bytes_read == 77


def test_changes_are_told_once_though_the_earliest_go():
    loader = Loader()
    side = PenstockLoaderView(loader, 0, "")
    told = []
    for loader.changes in [(), ("a",), ("a", "b"), ("b", "c"), ("b", "c"), ("x", "y"), ()]:  # 5: begun anew
        told.append(side.poll(0.0)[0].changes)
    assert told == [(), ("a",), ("b",), ("c",), (), ("x", "y"), ()]


def test_a_penstock_loader_has_its_gpu_times_in_the_recording():
    class Watched:
        gpu_times = None

        def stats(self):
            return LoaderStats(0, 0, 100, 10, 10, 0, Hop("deliver"), Hop("step", 10.0), EngineStats(), self.gpu_times)

    loader = Watched()
    view = PenstockLoaderView(loader, 0, "train")
    assert view.poll(1.0)[0].gpu_times is None
    loader.gpu_times = GpuTimes(3.0, 1.0, 2.0)
    assert view.poll(2.0)[0].gpu_times == (3.0, 1.0, 2.0)
