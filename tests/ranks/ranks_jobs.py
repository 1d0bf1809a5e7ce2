"""Jobs of several ranks over gloo: `ranks_jobs.py SHARDS OUT`. Torch is imported once, and ranks are forked from here.

Each rank writes OUT/JOB-RANKS-RANK.json.
"""

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch._dynamo  # DistributedDataParallel would import it in every rank
from ranks_mesh import mesh
from ranks_shards import MIDDLE, make_loader
from ranks_steps import adapt, computing, even, sleeping, tuned
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from penstock.shards import scan


def epoch(shards, out, ranks):
    """Return every batch of an epoch, with an all-reduce after each as in a training."""
    loader = make_loader(shards, ranks)
    batches, reduced = [], torch.zeros(1)
    for batch in loader:
        batches.append(batch["__key__"])
        workers = loader.stats().engine.workers
        distributed.all_reduce(reduced)
    read = loader.stats().engine.bytes_read
    loader.close()
    return {"batches": batches, "length": len(loader), "bytes": read, "workers": workers}


def train(shards, out, ranks):
    """Return the loss of the global batch in each step, and the weight at the end."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 1, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for batch in make_loader(shards, ranks, executor="thread"):
        loss = (model(batch["x"]).squeeze(1) - batch["x"].sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        global_loss = loss.detach().clone()
        distributed.all_reduce(global_loss)
        losses.append(global_loss.item() / ranks)
    return {"losses": losses, "weight": model.module.weight.flatten().tolist()}


def begin(shards, out, ranks):
    """Return the first steps, and save the position after them."""
    loader = make_loader(shards, ranks, executor="thread")
    batches = [batch["__key__"] for _, batch in zip(range(MIDDLE), loader, strict=False)]
    state = loader.state_dict()
    loader.close()
    if distributed.get_rank() == 0:
        (out / "state.json").write_text(json.dumps(state))
    return {"batches": batches}


def resume(shards, out, ranks):
    """Return the rest of the steps, on another number of ranks."""
    loader = make_loader(shards, ranks, executor="thread")
    loader.load_state_dict(json.loads((out / "state.json").read_text()))
    return {"batches": [batch["__key__"] for batch in loader]}


def index(shards, out, ranks):
    """Return the shards that this rank scanned, where none had an index."""
    scan_shard, scanned = scan.scan_shard, []
    scan.scan_shard = lambda path: scanned.append(path) or scan_shard(path)
    return {"samples": make_loader(shards, ranks).stats().epoch_samples, "scanned": scanned}


JOBS = [
    *((epoch, ranks) for ranks in (1, 2, 4, 8)),
    *((train, 1), (train, 4), (begin, 4), (resume, 2), (index, 8), (mesh, 1), (mesh, 4)),
    *((sleeping, 2), (sleeping, 4), (computing, 2), (computing, 4), (even, 2)),
    *((adapt, 2), (tuned, 2)),
]


def run_rank(rank, ranks, job, shards, out):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    store = f"file://{out}/store-{job.__name__}-{ranks}"
    distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    result = job(shards, out, ranks)
    (out / f"{job.__name__}-{ranks}-{rank}.json").write_text(json.dumps(result))
    distributed.barrier()
    distributed.destroy_process_group()


def start_rank(rank, ranks, job, shards, out):
    pid = os.fork()
    if pid:
        return pid
    try:
        run_rank(rank, ranks, job, shards, out)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main(shards, out):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for job, ranks in JOBS:
        if job is index:
            for sidecar in Path(shards).glob("*.pidx"):
                sidecar.unlink()
        pids = [start_rank(rank, ranks, job, shards, out) for rank in range(ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if any(codes):
            sys.exit(f"{job.__name__} on {ranks} ranks ended with {codes}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
