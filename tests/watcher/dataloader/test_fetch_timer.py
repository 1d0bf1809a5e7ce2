import gc
import time

from torch.utils.data import DataLoader, Dataset

from penstock.recording.format import FetchLine
from penstock.watcher.dataloader.main_process import make_iterator
from penstock.watcher.dataloader.worker_files import WorkerFiles

COLLECTING_SAMPLE = 5


class CollectingDataset(Dataset):
    """Runs a full garbage collection in one sample, and one of the youngest generation in the others."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        gc.collect(2 if index == COLLECTING_SAMPLE else 0)
        return index


def test_a_full_collection_in_a_worker_counts_to_its_batch():
    worker_files = WorkerFiles()
    loader = DataLoader(CollectingDataset(), 2, num_workers=1)
    try:
        list(make_iterator(loader, 0, 0, worker_files, time.perf_counter()))
        fetches = [line for line in worker_files.drain(last=True) if isinstance(line, FetchLine)]
    finally:
        worker_files.close()
    collecting = {fetch.batch: fetch for fetch in fetches}[COLLECTING_SAMPLE // 2]
    assert 0 < collecting.gc_s <= collecting.fetch_s
    # Python itself may collect as well, so the other batches need not be at 0.
    assert sum(fetch.gc_s for fetch in fetches) < 2 * collecting.gc_s
