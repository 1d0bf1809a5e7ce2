"""Trains on samples that threads of the training process prepare, through an IterableDataset without workers."""

import argparse
import queue
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


def features(i, rounds):
    """Compute features in pure Python; the interpreter's lock is held all the time."""
    value, out = i % 997 + 1, []
    for _ in range(rounds):
        value = (value * 1103515245 + 12345) % 2147483648
        out.append(value / 2147483648)
    return torch.tensor(out[-64:])


class Prepared(Dataset):
    def __init__(self, samples, rounds):
        self.samples, self.rounds = samples, rounds

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return features(i, self.rounds), i % 3


class Threaded(IterableDataset):
    """The same samples, prepared by threads that fill a queue."""

    def __init__(self, samples, rounds, threads):
        self.samples, self.rounds, self.threads = samples, rounds, threads

    def __iter__(self):
        ready = queue.Queue(maxsize=256)

        def work(first):
            for i in range(first, self.samples, self.threads):
                ready.put((features(i, self.rounds), i % 3))

        for first in range(self.threads):
            threading.Thread(target=work, args=(first,), daemon=True).start()
        for _ in range(self.samples):
            yield ready.get()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=4000)
    p.add_argument("--rounds", type=int, default=3000)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--hidden", type=int, default=512)
    a = p.parse_args()
    torch.set_num_threads(1)
    data = Threaded(a.samples, a.rounds, a.threads) if a.threads else Prepared(a.samples, a.rounds)
    loader = DataLoader(data, a.batch_size, num_workers=a.workers)
    net = nn.Sequential(
        nn.Linear(64, a.hidden), nn.ReLU(), nn.Linear(a.hidden, a.hidden), nn.ReLU(), nn.Linear(a.hidden, 3)
    )
    opt = torch.optim.Adam(net.parameters())
    t0, n = time.time(), 0
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += len(x)
    print(f"{n / (time.time() - t0):.2f} samples/s")


if __name__ == "__main__":
    main()
