"""Trains a small CNN on a folder of images, one folder per class, in the style of a first script: functions only."""

import argparse
import os
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, root, size, heavy, in_memory):
        self.files = sorted(Path(root).glob("*/*"))
        self.classes = sorted({file.parent.name for file in self.files})
        self.size, self.heavy, self.kept = size, heavy, None
        if in_memory:
            self.kept = [self.read(i) for i in range(len(self.files))]

    def __len__(self):
        return len(self.files)

    def read(self, index):
        file = self.files[index]
        image = Image.open(file).convert("RGB").resize((self.size, self.size))
        tensor = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(self.size, self.size, 3)
        return tensor.permute(2, 0, 1), self.classes.index(file.parent.name)

    def __getitem__(self, index):
        tensor, label = self.kept[index] if self.kept else self.read(index)
        tensor = tensor.float() / 255
        for _ in range(self.heavy):  # elastic distortions, one after the other
            shift = F.interpolate(torch.rand(1, 2, 8, 8) - 0.5, (self.size, self.size), mode="bicubic")
            grid = F.affine_grid(torch.eye(2, 3)[None], (1, 3, self.size, self.size), align_corners=False)
            tensor = F.grid_sample(tensor[None], grid + shift.permute(0, 2, 3, 1) * 0.05, align_corners=False)[0]
        return (tensor.flip(2) if random.random() < 0.5 else tensor), label


def build_model(width, classes):
    layers, channels = [], 3
    for out in (width, width * 2, width * 4):
        layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def init_worker(threads, table):
    if threads:
        torch.set_num_threads(threads)
    init_worker.table = [str(i) for i in range(table)]  # a vocabulary that every worker builds for itself


def evaluate(model, loader, batches):
    model.eval()
    with torch.no_grad():
        for i, (x, _) in enumerate(loader):
            model(x)
            if i + 1 == batches:
                break
    model.train()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--steps", type=int, default=10**9, help="steps per epoch at most")
    p.add_argument("--size", type=int, default=96)
    p.add_argument("--width", type=int, default=8)
    p.add_argument("--heavy", type=int, default=0)
    p.add_argument("--prefetch", type=int, default=2)
    p.add_argument("--persistent", action="store_true")
    p.add_argument("--in-memory", action="store_true")
    p.add_argument("--threads-per-worker", type=int, default=0)
    p.add_argument("--vocabulary", type=int, default=0)
    p.add_argument("--one-core", action="store_true", help="pin the whole job to one core")
    p.add_argument("--log", default="", help="append the loss of every step to this file")
    p.add_argument("--sync-log", action="store_true", help="wait until each line is on the disk")
    p.add_argument("--save", default="")
    p.add_argument("--save-every", type=int, default=0)
    p.add_argument("--memory-bank", type=int, default=0, help="rows of features that the model keeps, as MoCo does")
    p.add_argument("--evaluate-every", type=int, default=0)
    p.add_argument("--evaluate-batches", type=int, default=10)
    p.add_argument("--warm-up-s", type=float, default=0, help="compute this long in the first step, as a compiler does")
    a = p.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if a.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    data = Images(a.data, a.size, a.heavy, a.in_memory)
    loader = DataLoader(
        data,
        a.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=a.workers,
        persistent_workers=a.persistent and a.workers > 0,
        prefetch_factor=a.prefetch if a.workers else None,
        worker_init_fn=lambda _: init_worker(a.threads_per_worker, a.vocabulary),
    )
    held_out = DataLoader(data, a.batch_size)
    model = build_model(a.width, len(data.classes))
    model.register_buffer("bank", torch.zeros(a.memory_bank, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    log = open(a.log, "a") if a.log else None  # noqa: SIM115
    seen = step = 0
    start = time.time()
    for _ in range(a.epochs):
        for i, (x, y) in enumerate(loader):
            if step == 0 and a.warm_up_s:
                until = time.time() + a.warm_up_s
                while time.time() < until:
                    model(x)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(x)
            step += 1
            if log:
                log.write(f"{step} {loss.item()}\n")
                log.flush()
                if a.sync_log:
                    os.fsync(log.fileno())
            if a.save_every and step % a.save_every == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, a.save)
            if a.evaluate_every and step % a.evaluate_every == 0:
                evaluate(model, held_out, a.evaluate_batches)
            if i + 1 >= a.steps:
                break
    print(f"{seen / (time.time() - start):.2f} samples/s")


if __name__ == "__main__":
    main()
