"""Trains a small CNN on tar shards through webdataset's own loader."""

import argparse
import time
import warnings
from pathlib import Path

import torch
import webdataset as wds
from torch import nn

warnings.filterwarnings("ignore")


def to_tensor(image):
    return torch.from_numpy(image).permute(2, 0, 1).contiguous()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True, help="a folder of shards")
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--width", type=int, default=8)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--shuffle-buffer", type=int, default=64)
    a = p.parse_args()
    torch.set_num_threads(1)
    shards = [str(path) for path in sorted(Path(a.data).glob("*.tar"))]
    dataset = (
        wds.WebDataset(shards, shardshuffle=False, nodesplitter=wds.split_by_node, empty_check=False)
        .shuffle(a.shuffle_buffer)
        .decode("rgb")
        .to_tuple("jpg", "cls")
        .map_tuple(to_tensor, int)
        .batched(a.batch_size)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=a.workers, persistent_workers=a.workers > 0)
    model = nn.Sequential(
        nn.Conv2d(3, a.width, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(a.width, a.width * 2, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(a.width * 2, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    began, count = time.time(), 0
    for _ in range(a.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += len(images)
    print(f"{count / (time.time() - began):.2f} samples/s")


if __name__ == "__main__":
    main()
