"""Trains a character model on lines of gzip files, through an IterableDataset."""

import argparse
import gzip
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    """Lines as byte values. Workers share the files, or each reads all files and keeps every n-th line."""

    def __init__(self, folder, split, length, parse_rounds):
        self.files = sorted(Path(folder).glob("**/*.gz"))
        self.split, self.length, self.parse_rounds = split, length, parse_rounds

    def parse(self, line):
        for _ in range(self.parse_rounds):  # normalise, as a corpus needs it
            line = " ".join(word.strip(".,;").lower() for word in line.split(" "))
        return torch.tensor(list(line.encode()[: self.length].ljust(self.length)))

    def __iter__(self):
        info = get_worker_info()
        mine, of = (info.id, info.num_workers) if info else (0, 1)
        files = self.files[mine::of] if self.split == "files" else self.files
        number = 0
        for file in files:
            with gzip.open(file, "rt") as lines:
                for line in lines:
                    number += 1
                    if self.split == "files":
                        yield self.parse(line)
                    else:
                        parsed = self.parse(line)
                        if number % of == mine:
                            yield parsed


class CharModel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(256, dim), nn.GRU(dim, dim, batch_first=True), nn.Linear(dim, 256)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def make_loader(a):
    data = Lines(a.data, a.split, a.length, a.parse_rounds)
    keep = a.workers > 0 and not a.new_loader
    return DataLoader(data, a.batch_size, num_workers=a.workers, persistent_workers=keep, drop_last=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--split", choices=["files", "modulo"], default="files")
    p.add_argument("--length", type=int, default=48)
    p.add_argument("--parse-rounds", type=int, default=1)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--new-loader", action="store_true", help="make the DataLoader anew for every epoch")
    a = p.parse_args()
    torch.set_num_threads(1)
    model = CharModel(a.dim)
    optimizer = torch.optim.Adam(model.parameters())
    loader = make_loader(a)
    t, n = time.time(), 0
    for epoch in range(a.epochs):
        if a.new_loader and epoch:
            loader = make_loader(a)
        for ids in loader:
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            n += len(ids)
    print(f"{n / (time.time() - t):.2f} samples/s")


if __name__ == "__main__":
    main()
