"""The workers of penstock.DataLoader: seeds, worker_init_fn, death, epochs, order of completion."""

import multiprocessing
import os
import random
import signal
import time

import numpy as np
import psutil
import pytest
import torch
import torch.utils.data
from torch.utils.data import get_worker_info

from penstock import DataLoader
from penstock.engine.work_queue import WorkQueue
from tests.dataloader.samples import Numbers, outcomes


class Draws(Numbers):
    """Each sample is three random numbers, one of each global generator."""

    def __getitem__(self, index):
        return index, random.random(), float(np.random.rand()), torch.rand(()).item()


class Worker(Numbers):
    """Each sample is the number, the count and the seed of the worker that makes it."""

    def __getitem__(self, index):
        info = get_worker_info()
        assert info.dataset is self
        return info.id, info.num_workers, info.seed, os.getpid()


def _samples(loader):
    return [tuple(row) for batch in loader for row in zip(*(column.tolist() for column in batch), strict=True)]


def test_random_numbers_do_not_depend_on_the_workers():
    found = []
    for workers, batch_size in ((1, 4), (2, 4), (2, 4)):
        torch.manual_seed(5)
        found.append(_samples(DataLoader(Draws(30), batch_size, num_workers=workers)))
    assert found[0] == found[1] == found[2]
    assert len({row[1:] for row in found[0]}) == 30


def test_random_numbers_differ_between_epochs_and_between_repeated_samples():
    loader = DataLoader(Draws(4), batch_size=2, num_workers=1, persistent_workers=True, sampler=[1, 1, 1, 1])
    draws = [row[1:] for row in (*_samples(loader), *_samples(loader))]
    assert len(set(draws)) == 8


def test_worker_info_and_seeds_are_those_of_torch():
    seeds = []
    for loader_class in (torch.utils.data.DataLoader, DataLoader):
        torch.manual_seed(11)
        rows = _samples(loader_class(Worker(60), batch_size=2, num_workers=2))
        assert {row[0] for row in rows} <= {0, 1}
        assert {row[1] for row in rows} == {2}
        seeds.append({row[2] - row[0] for row in rows})
    assert seeds[0] == seeds[1]
    assert get_worker_info() is None


def test_worker_init_fn_runs_once_in_each_worker_after_seeding(tmp_path):
    def init(number):
        part = tmp_path / f"{number}.part"
        part.write_text(str(torch.initial_seed()))
        part.rename(tmp_path / f"{number}")

    class AfterBothStarted(Worker):
        def __getitem__(self, index):
            while not all((tmp_path / name).exists() for name in "01"):
                time.sleep(0.001)
            return super().__getitem__(index)

    torch.manual_seed(3)
    dataset = AfterBothStarted(40)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, worker_init_fn=init, persistent_workers=True)
    rows = [*_samples(loader), *_samples(loader)]
    seeds = {int(path.name): int(path.read_text()) for path in tmp_path.iterdir()}
    assert set(seeds) == {0, 1}
    assert all(seeds[number] == seed for number, _, seed, _ in rows)


def test_a_torch_seed_set_by_worker_init_fn_is_the_initial_seed_of_every_sample():
    class Seeds(Numbers):
        def __getitem__(self, index):
            return torch.initial_seed(), torch.rand(()).item()

    loader = DataLoader(Seeds(8), batch_size=2, num_workers=2, worker_init_fn=lambda _: torch.manual_seed(12345))
    rows = _samples(loader)
    assert {row[0] for row in rows} == {12345}
    assert len({row[1] for row in rows}) == 8


def test_the_initial_seed_of_every_sample_fits_into_a_batch():
    class Seeds(Numbers):
        def __getitem__(self, index):
            return torch.initial_seed()

    batches = list(DataLoader(Seeds(64), batch_size=8, num_workers=2))
    assert len(set(torch.cat(batches).tolist())) == 64


def test_an_error_in_worker_init_fn_is_raised_by_the_first_batch():
    def init(number):
        raise LookupError(f"worker {number} is not welcome")

    with pytest.raises(LookupError, match=r"(?s)in DataLoader worker process 0.*worker 0 is not welcome"):
        next(iter(DataLoader(Numbers(8), batch_size=2, num_workers=1, worker_init_fn=init)))


def test_without_persistent_workers_each_epoch_sees_changes_to_the_dataset():
    class Shifted(Numbers):
        shift = 0

        def __getitem__(self, index):
            return index + self.shift

    for persistent, expected in ((False, [100, 101, 102]), (True, [0, 1, 2])):
        dataset = Shifted(3)
        loader = DataLoader(dataset, batch_size=3, num_workers=1, persistent_workers=persistent)
        assert next(iter(loader)).tolist() == [0, 1, 2]
        dataset.shift = 100
        assert next(iter(loader)).tolist() == expected


def test_persistent_workers_are_the_same_processes_in_every_epoch_even_after_an_early_break():
    loader = DataLoader(Worker(40), batch_size=2, num_workers=2, persistent_workers=True)
    pids = set()
    for _ in range(3):
        for count, batch in enumerate(loader):
            pids.update(batch[3].tolist())
            if count == 5:
                break
    rows = _samples(loader)
    assert len(rows) == 40
    assert {row[3] for row in rows} | pids <= {process.pid for process in multiprocessing.active_children()}


def test_two_iterators_of_one_loader_are_independent():
    loader = DataLoader(Numbers(12), batch_size=2, num_workers=1)
    pairs = list(zip(loader, loader, strict=True))
    assert [one.tolist() for one, _ in pairs] == [[i, i + 1] for i in range(0, 12, 2)]
    assert all(torch.equal(one, other) for one, other in pairs)


class DeadlyOnce(Numbers):
    """One sample kills its worker at the first attempt."""

    def __init__(self, length, flag):
        super().__init__(length)
        self.flag = flag

    def __getitem__(self, index):
        if index == 5 and not os.path.exists(self.flag):
            with open(self.flag, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize("collate_fn", [None, torch.tensor], ids=["samples", "batches"])
def test_samples_of_a_worker_that_dies_are_made_by_others(tmp_path, collate_fn):
    dataset = DeadlyOnce(40, str(tmp_path / "died"))
    batches = list(DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=collate_fn))
    assert torch.cat(batches).tolist() == list(range(40))
    assert os.path.exists(dataset.flag)


@pytest.mark.parametrize("collate_fn", [None, torch.tensor], ids=["samples", "batches"])
def test_a_sample_that_kills_two_workers_is_an_error_and_the_others_are_delivered(collate_fn):
    class Deadly(Numbers):
        def __getitem__(self, index):
            if index == 13:
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    found = outcomes(DataLoader(Deadly(24), batch_size=4, num_workers=2, collate_fn=collate_fn))
    kind, text = found.pop(3)
    assert kind == "RuntimeError"
    assert "is killed by signal" in text
    assert "sample 13 of the epoch" in text or "a batch" in text
    assert torch.cat(found).tolist() == [index for index in range(24) if not 12 <= index < 16]


@pytest.mark.parametrize("collate_fn", [None, torch.tensor], ids=["samples", "batches"])
@pytest.mark.parametrize("step", ["take", "rows", "finish", "send", "note_reported"])
def test_a_worker_may_die_at_any_step_of_its_work(tmp_path, monkeypatch, step, collate_fn):
    original = getattr(WorkQueue, step)

    def die_afterwards(self, *arguments):
        result = original(self, *arguments)
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    monkeypatch.setattr(WorkQueue, step, die_afterwards)  # a forked worker inherits it
    held = list(DataLoader(Numbers(40), batch_size=4, num_workers=1, collate_fn=collate_fn))
    assert torch.cat(held).tolist() == list(range(40))


def test_a_worker_killed_while_it_waits_is_replaced():
    loader = DataLoader(Worker(40), batch_size=2, num_workers=2, persistent_workers=True)
    killed = {row[3] for row in _samples(loader)}
    for process in multiprocessing.active_children():
        if process.pid in killed:
            process.kill()
            process.join()
    samples = _samples(loader)
    assert len(samples) == 40
    assert not killed & {row[3] for row in samples}


def test_workers_that_cannot_start_are_an_error():
    def init(number):
        os._exit(3)

    with pytest.raises(RuntimeError, match="exit code 3, before it had made a sample"):
        next(iter(DataLoader(Numbers(8), num_workers=1, worker_init_fn=init)))


class Gated(Numbers):
    """The first sample is made only when a file is there."""

    def __init__(self, length, gate):
        super().__init__(length)
        self.gate = gate

    def __getitem__(self, index):
        while index == 0 and not os.path.exists(self.gate):
            time.sleep(0.001)
        return index


def test_with_in_order_false_a_slow_batch_does_not_hold_up_the_others(tmp_path):
    gate = tmp_path / "gate"
    loader = DataLoader(Gated(20, str(gate)), batch_size=2, num_workers=2, in_order=False)
    iterator = iter(loader)
    first = [next(iterator)[0].item() for _ in range(9)]
    assert 0 not in first
    gate.write_text("")
    assert sorted([*first, *(batch[0].item() for batch in iterator)]) == list(range(0, 20, 2))


def test_workers_may_wait_for_each_other_in_their_first_samples():
    class Meeting(Numbers):
        def __init__(self, workers):
            super().__init__(workers)
            self.barrier = multiprocessing.Barrier(workers)

        def __getitem__(self, index):
            self.barrier.wait()
            return index

    batches = list(DataLoader(Meeting(2), batch_size=1, num_workers=2))
    assert [batch.tolist() for batch in batches] == [[0], [1]]


def test_a_batch_that_takes_longer_than_the_timeout_is_an_error(tmp_path):
    loader = DataLoader(Gated(4, str(tmp_path / "gate")), num_workers=1, timeout=0.2)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        next(iter(loader))


def test_no_more_batches_are_drawn_ahead_than_prefetch_factor_says():
    drawn = []

    def draw():
        for number in range(100):
            drawn.append(number)
            yield [number]

    class Sampler:
        def __iter__(self):
            return draw()

        def __len__(self):
            return 100

    iterator = iter(DataLoader(Numbers(100), batch_sampler=Sampler(), num_workers=2, prefetch_factor=3))
    assert len(drawn) == 6
    next(iterator)
    assert len(drawn) == 7


def test_pin_memory_without_an_accelerator_is_warned_about_as_by_torch():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batch = next(iter(DataLoader(Numbers(4), num_workers=1, pin_memory=True)))
    assert not batch.is_pinned()


def test_settings_are_refused_as_by_torch():
    for settings in (
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"batch_sampler": [[0]], "shuffle": True},
        {"sampler": [0], "shuffle": True},
        {"snapshot_every_n_steps": -1},
    ):
        with pytest.raises(ValueError):
            DataLoader(Numbers(4), **settings)


def test_a_worker_ends_when_the_training_process_is_killed(tmp_path):
    pid = os.fork()
    if pid == 0:
        try:
            iterator = iter(DataLoader(Worker(1000), batch_size=1, num_workers=2))
            rows = [next(iterator)[3].item() for _ in range(50)]
            other = iter(DataLoader(Worker(1000), batch_size=1, num_workers=2))
            rows += [next(other)[3].item() for _ in range(50)]
            (tmp_path / "pids.part").write_text(" ".join(map(str, set(rows))))
            (tmp_path / "pids.part").rename(tmp_path / "pids")
            signal.pause()
        finally:
            os._exit(1)
    while not (tmp_path / "pids").exists():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        time.sleep(0.01)
    workers = [psutil.Process(int(each)) for each in (tmp_path / "pids").read_text().split()]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
