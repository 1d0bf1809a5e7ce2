"""Trains an MLP on rows of a numpy memmap, in the style of a trainer class."""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class MemmapRows(Dataset):
    """Each sample is `rows` rows: neighbours, or rows from all over the file."""

    def __init__(self, path: str, features: int, rows: int, scattered: bool, samples: int, keep: bool) -> None:
        self.path, self.features, self.rows, self.scattered, self.samples = path, features, rows, scattered, samples
        self.table: np.ndarray | None = None
        self.keep, self.kept = keep, {}

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.table is None:
            self.table = np.memmap(self.path, np.float32, mode="r").reshape(-1, self.features)
        if self.scattered:
            picks = np.random.default_rng(index).integers(0, len(self.table), self.rows)
            block = self.table[picks]
        else:
            first = index * self.rows % (len(self.table) - self.rows + 1)
            block = np.array(self.table[first : first + self.rows])
        if self.keep:
            self.kept[index] = block.copy()  # meant as a cache, but nothing reads it
        return torch.from_numpy(block), index % 10


@dataclass
class Node:
    """A record of a step's history, linked in both directions."""

    step: int
    before: Node | None = None
    after: Node | None = None
    extra: list[dict] = field(default_factory=list)


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        features = options.features
        self.model = nn.Sequential(
            nn.Linear(features, options.hidden), nn.ReLU(), nn.Linear(options.hidden, options.hidden), nn.ReLU()
        )
        self.head = nn.Linear(options.hidden, 10)
        self.optimizer = torch.optim.AdamW([*self.model.parameters(), *self.head.parameters()], lr=1e-3)
        self.history: list[Node] = []

    def train_step(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.head(self.model(rows).mean(1)), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss

    def remember(self, step: int) -> None:
        for number in range(self.options.keep):
            node = Node(step, extra=[{"number": number}])
            if self.history:
                node.before, self.history[-1].after = self.history[-1], node
            self.history.append(node)

    def fit(self, loader: DataLoader) -> float:
        step = seen = 0
        began = time.perf_counter()
        for _ in range(self.options.epochs):
            for rows, labels in loader:
                self.train_step(rows, labels)
                self.remember(step)
                step, seen = step + 1, seen + len(rows)
                if self.options.collect_every and step % self.options.collect_every == 0:
                    gc.collect()
        return seen / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--scattered", action="store_true")
    parser.add_argument("--keep-samples", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--keep", type=int, default=0, help="records that the trainer keeps per step")
    parser.add_argument("--collect-every", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = MemmapRows(
        options.data, options.features, options.rows, options.scattered, options.samples, options.keep_samples
    )
    loader = DataLoader(
        dataset,
        options.batch_size,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        prefetch_factor=4 if options.workers else None,
    )
    print(f"{Trainer(options).fit(loader):.2f} samples/s")


if __name__ == "__main__":
    main()
