"""A job of ranks_jobs.py: ranks in a grid, in which the ranks of a row hold parts of one model."""

import torch
from ranks_shards import make_loader
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

ROWS = {1: 1, 4: 2}
"""Rows of the grid, by the number of ranks."""


def mesh(shards, out, ranks):
    """Train with FSDP along the columns and tensor parallelism along the rows; return the loss of each global batch."""
    grid = init_device_mesh("cpu", (ROWS[ranks], ranks // ROWS[ranks]), mesh_dim_names=("data", "model"))
    data = grid["data"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 8, dtype=torch.float64), nn.Tanh(), nn.Linear(8, 1, dtype=torch.float64))
    parallelize_module(model, grid["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = make_loader(shards, data.size(), executor="thread", rank=data.get_local_rank(), world_size=data.size())
    batches, losses = [], []
    for batch in loader:
        batches.append(batch["__key__"])
        loss = (model(batch["x"]).squeeze(1) - batch["x"].sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        global_loss = loss.detach().clone()
        distributed.all_reduce(global_loss, group=data.get_group())
        losses.append(global_loss.item() / data.size())
    return {"batches": batches, "losses": losses}
