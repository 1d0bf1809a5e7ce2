"""Trains on two ranks with DistributedDataParallel over gloo; every rank reads its own folder of arrays."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Arrays(Dataset):
    def __init__(self, folder, samples):
        self.files, self.samples = sorted(Path(folder).glob("*.npy")), samples

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return torch.from_numpy(np.load(self.files[i % len(self.files)])), i % 5


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", nargs=2, required=True, help="the folder of each rank")
    p.add_argument("--samples", type=int, default=800)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--hidden", type=int, default=64)
    a = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = DataLoader(Arrays(a.data[rank], a.samples), a.batch_size, num_workers=a.workers)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64, a.hidden), nn.ReLU(), nn.Linear(a.hidden, 5))
    model = DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    began, n = time.time(), 0
    for x, y in loader:
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        n += len(x)
    if rank == 0:
        print(f"{2 * n / (time.time() - began):.2f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
