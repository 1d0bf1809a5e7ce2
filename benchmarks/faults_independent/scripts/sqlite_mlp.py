"""Trains an MLP on records of a SQLite database; every worker opens a connection of its own."""

import argparse
import fcntl
import json
import os
import sqlite3
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, path, samples, per_sample, lock):
        self.path, self.samples, self.per_sample, self.lock = path, samples, per_sample, lock
        self.pid = self.db = self.lock_file = None

    def connect(self):
        self.pid = os.getpid()
        self.db = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        self.lock_file = open(self.path + ".lock", "w") if self.lock else None  # noqa: SIM115

    def __len__(self):
        return self.samples

    def rows(self, index):
        found = []
        for k in range(self.per_sample):
            query = "SELECT features, label FROM records WHERE id = ?"
            found.append(self.db.execute(query, ((index * self.per_sample + k) % 2000,)).fetchone())
        return [json.loads(row[0]) for row in found], found[0][1]

    def __getitem__(self, index):
        if self.pid != os.getpid():
            self.connect()
        if self.lock == "flock":
            fcntl.flock(self.lock_file, fcntl.LOCK_EX)
            values, label = self.rows(index)
            fcntl.flock(self.lock_file, fcntl.LOCK_UN)
        elif self.lock == "exclusive":
            self.db.execute("BEGIN EXCLUSIVE")
            values, label = self.rows(index)
            self.db.execute("UPDATE uses SET n = n + 1")
            self.db.execute("COMMIT")
        else:
            values, label = self.rows(index)
        return torch.tensor(values).mean(0), label


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--lock", choices=["", "flock", "exclusive"], default="")
    p.add_argument("--samples", type=int, default=2000)
    p.add_argument("--per-sample", type=int, default=8)
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--hidden", type=int, default=128)
    a = p.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Records(a.data, a.samples, a.per_sample, a.lock), a.batch_size, shuffle=True, num_workers=a.workers
    )
    net = nn.Sequential(nn.LazyLinear(a.hidden), nn.GELU(), nn.Linear(a.hidden, 4))
    net(torch.zeros(1, 64))
    opt = torch.optim.RMSprop(net.parameters())
    t0 = time.time()
    n = 0
    for x, y in loader:
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
        n += len(x)
    print(f"{n / (time.time() - t0):.2f} samples/s")


if __name__ == "__main__":
    main()
