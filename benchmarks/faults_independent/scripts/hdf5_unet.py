"""Trains a small U-Net on images and masks of an HDF5 file, with gradient accumulation."""

import argparse
import time

import h5py
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, path, samples):
        self.path, self.samples, self.file = path, samples, None

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if self.file is None:
            self.file = h5py.File(self.path, "r", rdcc_nbytes=1 << 20)
        index = index % len(self.file["image"])
        image = torch.from_numpy(self.file["image"][index]).float() / 255
        mask = torch.from_numpy(self.file["mask"][index]).long()
        return image, mask


def erode(masks, rounds):
    """Return weights of pixels: how many erosions they survive, by max pooling of the background."""
    outside = 1 - masks[:, None].float()
    weight = torch.ones_like(outside)
    for _ in range(rounds):
        outside = nn.functional.max_pool2d(outside, 3, 1, 1)
        weight += 1 - outside
    return weight[:, 0]


class Collate:
    """Stacks images and masks, and adds the weights of the pixels of the batch."""

    def __init__(self, rounds):
        self.rounds = rounds

    def __call__(self, batch):
        images = torch.stack([image for image, _ in batch])[:, None]
        masks = torch.stack([mask for _, mask in batch])
        return images, masks, erode(masks, self.rounds)


class UNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(c, c * 2, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(c * 2, c, 2, stride=2)
        self.out = nn.Conv2d(c * 2, 2, 1)

    def forward(self, x):
        first = self.down(x)
        return self.out(torch.cat([first, self.up(self.middle(first))], 1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--samples", type=int, default=800)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--channels", type=int, default=4)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--erosions", type=int, default=0)
    a = p.parse_args()
    torch.set_num_threads(1)
    net = UNet(a.channels)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(
        Scans(a.data, a.samples), a.batch_size, num_workers=a.workers, shuffle=True, collate_fn=Collate(a.erosions)
    )
    start, seen = time.perf_counter(), 0
    for i, (image, mask, weight) in enumerate(loader):
        loss = (nn.functional.cross_entropy(net(image), mask, reduction="none") * weight).mean() / a.accumulate
        loss.backward()
        if (i + 1) % a.accumulate == 0:
            opt.step()
            opt.zero_grad()
        seen += len(image)
    print(f"{seen / (time.perf_counter() - start):.2f} samples/s")


if __name__ == "__main__":
    main()
