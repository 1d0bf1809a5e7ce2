"""What a worker's fetch and a process's look tell beside their times: collections, and cores."""

import gc
import time

from torch.utils.data import DataLoader, Dataset

from penstock.recording.format import FetchLine
from penstock.watcher.dataloader import main_process as torchloader
from penstock.watcher.dataloader.worker_files import WorkerFiles

COLLECTS = 5


class Collecting(Dataset):
    """A full collection in one sample, a young one in the others."""

    def __len__(self):
        return 8

    def __getitem__(self, at):
        gc.collect(2 if at == COLLECTS else 0)
        return at


def test_full_collections_in_a_worker_are_timed_with_the_batch_that_they_hold_up():
    spool = WorkerFiles()
    try:
        list(torchloader.make_iterator(DataLoader(Collecting(), 2, num_workers=1), 0, 0, spool, time.perf_counter()))
        fetches = [line for line in spool.drain(last=True) if isinstance(line, FetchLine)]
    finally:
        spool.close()
    held = {fetch.batch: fetch for fetch in fetches}[COLLECTS // 2]
    assert 0 < held.gc_s <= held.fetch_s
    assert sum(fetch.gc_s for fetch in fetches) < 2 * held.gc_s  # a collection of Python's own may come in between
