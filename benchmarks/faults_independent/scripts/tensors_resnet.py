"""Trains a small residual network on tensors in memory; samples may be dicts of many small tensors."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tensors(Dataset):
    def __init__(self, samples, size, parts, dtype):
        self.images = torch.randint(0, 255, (min(samples, 512), 3, size, size), dtype=torch.uint8)
        self.samples, self.parts, self.dtype = samples, parts, dtype

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        image = self.images[i % len(self.images)].to(self.dtype)
        extras = {f"meta_{k}": torch.tensor([float(i + k)]) for k in range(self.parts)}
        return {"image": image, "label": i % 10, **extras}


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1)
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def list_collate(batch):
    """Keep every sample's tensors apart, as detection code does for boxes."""
    return {key: [sample[key] for sample in batch] for key in batch[0]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=4000)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--width", type=int, default=8)
    p.add_argument("--blocks", type=int, default=2)
    p.add_argument("--stride", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--parts", type=int, default=0)
    p.add_argument("--lists", action="store_true")
    p.add_argument("--item-every", type=int, default=0)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--sharing", choices=["file_descriptor", "file_system"], default="file_descriptor")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.multiprocessing.set_sharing_strategy(a.sharing)
    data = Tensors(a.samples, a.size, a.parts, torch.float32)
    loader = DataLoader(
        data, a.batch_size, shuffle=True, num_workers=a.workers, collate_fn=list_collate if a.lists else None
    )
    net = nn.Sequential(
        nn.Conv2d(3, a.width, 3, stride=a.stride, padding=1),
        *[Block(a.width) for _ in range(a.blocks)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(a.width, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    start, seen, step, total = time.perf_counter(), 0, 0, 0.0
    for batch in loader:
        images, labels = batch["image"], batch["label"]
        if a.lists:
            images, labels = torch.stack(images), torch.tensor(labels)
        loss = nn.functional.cross_entropy(net(images / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step, seen = step + 1, seen + len(images)
        if a.item_every and step % a.item_every == 0:
            total += loss.item()
    print(f"loss {total:.3f}")
    print(f"{seen / (time.perf_counter() - start):.2f} samples/s")


if __name__ == "__main__":
    main()
