"""One rank of a real process group (gloo) that accumulates gradients under DistributedDataParallel."""

import json
import os
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
    """Train `batches` batches with `n` per optimizer step, and write a file for this rank.

    The file has the gradients of each optimizer step, and for each all-reduce the number of the step it belongs to.
    """
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    all_reduces, gradients = [], []

    def counting_hook(group, bucket):
        all_reduces.append(len(gradients))
        return allreduce_hook(group, bucket)

    model = DistributedDataParallel(net())
    model.register_comm_hook(None, counting_hook)
    for batch, micro in accumulate((batch_of(rank, number) for number in range(batches)), n, model):
        with micro:
            loss_of(model, batch).backward()
        if micro.last:
            gradients.append(gradients_of(model))
            model.zero_grad()
    Path(folder, f"rank{rank}.json").write_text(json.dumps({"all_reduces": all_reduces, "gradients": gradients}))
    distributed.destroy_process_group()
    # DDP keeps gloo's threads until the interpreter ends, and ends its process by SIGABRT if one of them releases a
    # Python object only then. What this rank has to say is in its file.
    os._exit(0)
