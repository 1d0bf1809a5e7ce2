"""A plain PyTorch training that is watched: an ordinary loop with `penstock.watch` around its loader.

    python examples/watch_training.py --record run.jsonl
    penstock diagnose run.jsonl

`--lag-ms 40` makes worker 0 slow, like a bad mount would. Without `--record` nothing is written, and only the lines of
the run appear on a terminal; `penstock run examples/watch_training.py` records it too.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

import penstock


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Synthetic images that take some milliseconds of computing each, like decoding."""

    def __init__(self, size: int, lag_s: float) -> None:
        self.size = size
        self.lag_s = lag_s

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        worker = get_worker_info()
        if worker is not None and worker.id == 0:
            time.sleep(self.lag_s)
        pixels = torch.rand(3, 128, 128, generator=torch.Generator().manual_seed(index))
        return nn.functional.interpolate(pixels[None], size=64, mode="bicubic")[0], index % 10


def main() -> None:
    """Train for two short epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lag-ms", type=float, default=0.0)
    parser.add_argument("--record", help="A file for penstock diagnose.")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(SyntheticImages(1600, args.lag_ms / 1e3), batch_size=16, num_workers=args.workers)

    with penstock.watch(loader, record=args.record, name="train") as batches:
        for _ in range(args.epochs):
            for images, labels in batches:
                with batches.phase("forward"):
                    loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                with batches.phase("backward"):
                    loss.backward()
                with batches.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()


if __name__ == "__main__":
    main()
