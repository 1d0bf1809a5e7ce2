"""Trains on several folders of arrays, one mount per worker: each worker reads its own folder."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Mounts(IterableDataset):
    def __init__(self, folders, samples, work):
        self.folders, self.samples, self.work = folders, samples, work

    def __iter__(self):
        info = get_worker_info()
        folders = self.folders[info.id :: info.num_workers] if info else self.folders
        for folder in folders:
            files = sorted(Path(folder).glob("*.npy"))
            for k in range(self.samples // len(self.folders)):
                array = np.load(files[k % len(files)])
                for _ in range(self.work):
                    array = np.sort(array, axis=-1)[..., ::-1]
                yield torch.from_numpy(array.copy()), k % 5


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", nargs="+", required=True)
    p.add_argument("--samples", type=int, default=1600)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--work", type=int, default=1)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--out-of-order", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Mounts(a.data, a.samples, a.work), a.batch_size, num_workers=len(a.data), in_order=not a.out_of_order
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64, a.hidden), nn.ReLU(), nn.Linear(a.hidden, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    started, rows = time.time(), 0
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        rows += len(x)
    print(f"{rows / (time.time() - started):.2f} samples/s")


if __name__ == "__main__":
    main()
