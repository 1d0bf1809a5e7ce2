"""Trains with Accelerate on several ranks, with torch's DataLoader or ours, and prints the losses of all ranks."""

import json
import sys

import accelerate
import torch
from torch.utils.data import DataLoader, TensorDataset

import penstock


def main(kind):
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True)
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.rand(22, 8, generator=generator), torch.arange(22) % 7)
    model = torch.nn.Linear(8, 7)
    loader = {"torch": DataLoader, "penstock": penstock.DataLoader}[kind](
        data, batch_size=3, shuffle=True, num_workers=1
    )
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    assert type(loader.base_dataloader).__module__.startswith(kind)
    losses, labels_of_epochs = [], []
    for _ in range(2):
        seen = []
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses += accelerator.gather(loss.detach().reshape(1)).tolist()
            seen += accelerator.gather_for_metrics(labels).tolist()
        labels_of_epochs.append(sorted(seen))
    if accelerator.is_main_process:
        print(json.dumps({"losses": losses, "labels": labels_of_epochs}))
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
