"""One rank of a real process group (gloo), which accumulates gradients under DDP."""

import json
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from penstock.train import accumulate

BATCH = 3


def net():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def batch_of(rank, number):
    return torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(100 * rank + number))


def loss_of(model, batch):
    return model(batch).square().mean()


def gradients_of(model):
    return torch.cat([each.grad.flatten() for each in model.parameters()]).tolist()


def run_rank(rank, world_size, folder, batches, n):
    """Write the gradients of each step, and the steps of each exchange, into a file of this rank."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    exchanged, found = [], []

    def counted(group, bucket):
        exchanged.append(len(found))
        return allreduce_hook(group, bucket)

    model = DistributedDataParallel(net())
    model.register_comm_hook(None, counted)
    for batch, micro in accumulate((batch_of(rank, number) for number in range(batches)), n, model):
        with micro:
            loss_of(model, batch).backward()
        if micro.last:
            found.append(gradients_of(model))
            model.zero_grad()
    Path(folder, f"rank{rank}.json").write_text(json.dumps({"exchanged": exchanged, "gradients": found}))
    distributed.destroy_process_group()
