"""Datasets that only a forked worker can get, and what others get."""

import os
import sqlite3
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import psutil
import pytest
import torch

from penstock import DataLoader
from tests.dataloader.samples import Numbers


class OpenFile(Numbers):
    def __init__(self, path):
        super().__init__(50)
        path.write_bytes(bytes(range(50)))
        self.file = open(path, "rb")  # noqa: SIM115

    def __getitem__(self, index):
        return os.pread(self.file.fileno(), 1, index)[0]


class OpenHdf5(Numbers):
    def __init__(self, path):
        super().__init__(50)
        with h5py.File(path, "w") as file:
            file["numbers"] = np.arange(50)
        self.file = h5py.File(path, "r")

    def __getitem__(self, index):
        return self.file["numbers"][index]


class OpenSqlite(Numbers):
    def __init__(self, path):
        super().__init__(50)
        self.database = sqlite3.connect(path, check_same_thread=False)
        self.database.execute("create table numbers (id integer primary key)")
        self.database.executemany("insert into numbers values (?)", [(index,) for index in range(50)])
        self.database.commit()

    def __getitem__(self, index):
        return self.database.execute("select id from numbers where id = ?", (index,)).fetchone()[0]


class WithLambda(Numbers):
    def __init__(self, path):
        super().__init__(50)
        self.transform = lambda number: number

    def __getitem__(self, index):
        return self.transform(index)


class WithGenerator(Numbers):
    def __init__(self, path):
        super().__init__(50)
        self.unpicklable = (number for number in range(3))


@pytest.mark.parametrize("dataset_class", [OpenFile, OpenHdf5, OpenSqlite, WithLambda, WithGenerator])
def test_what_a_fork_can_take_works_as_with_torch(tmp_path, dataset_class):
    dataset = dataset_class(tmp_path / "data")
    assert torch.cat(list(DataLoader(dataset, batch_size=4, num_workers=2))).tolist() == list(range(50))
    for handle in ("file", "database"):
        if hasattr(dataset, handle):
            getattr(dataset, handle).close()


def test_a_dataset_defined_by_a_notebook_cell_works():
    cell = textwrap.dedent(
        """
        import torch
        from penstock import DataLoader
        class Cell:
            def __init__(self): self.scale = lambda x: 2 * x
            def __len__(self): return 8
            def __getitem__(self, i): return self.scale(i)
        print(torch.cat(list(DataLoader(Cell(), batch_size=2, num_workers=2))).tolist())
        """
    )
    code = f"exec(compile({cell!r}, '<cell>', 'exec'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == str(list(range(0, 16, 2)))


class Large:
    """200 MB of tensors and arrays, and each sample is a part of both."""

    def __init__(self):
        self.tensors = torch.ones(100, 250_000)
        self.arrays = np.ones((100, 125_000))

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return os.getpid(), float(self.tensors[index].sum()), float(self.arrays[index].sum())


@pytest.mark.slow
@pytest.mark.parametrize("method", [None, "spawn"])
def test_a_worker_takes_little_memory_besides_the_dataset(method):
    loader = DataLoader(Large(), num_workers=2, multiprocessing_context=method, persistent_workers=True)
    pids, total = set(), 0.0
    for pid, tensors, arrays in loader:
        pids.add(int(pid))
        total += float(tensors + arrays)
    assert total == 100 * 375_000
    for pid in pids:
        memory = psutil.Process(pid).memory_full_info()
        assert memory.uss < (40 << 20 if method is None else 200 << 20), memory  # a spawned worker imports torch


@pytest.mark.slow
def test_spawned_workers_get_the_arrays_of_the_dataset_once(tmp_path):
    dataset = Large()
    loader = DataLoader(dataset, num_workers=2, multiprocessing_context="spawn", persistent_workers=True)
    list(loader)
    files = [
        os.stat(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if "penstock-dataset" in _target(each)
    ]
    assert len({file.st_ino for file in files}) == 1
    assert files[0].st_size == dataset.tensors.nbytes + dataset.arrays.nbytes


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


@pytest.mark.slow
def test_a_dataset_that_spawn_cannot_pickle_is_an_error_that_says_what_to_do(tmp_path):
    loader = DataLoader(WithGenerator(tmp_path), num_workers=1, multiprocessing_context="spawn")
    with pytest.warns(UserWarning, match="Got pickle error"), pytest.raises(TypeError, match="pickle") as caught:
        iter(loader)
    assert "Leave multiprocessing_context out" in "".join(getattr(caught.value, "__notes__", []))
