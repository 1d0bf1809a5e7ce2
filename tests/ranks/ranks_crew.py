"""Jobs of several ranks over gloo: `ranks_crew.py SHARDS OUT`. Torch is imported once; ranks are forked from here.

Each rank leaves OUT/JOB-RANKS-RANK.json.
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
from ranks_material import MIDDLE, make_loader
from ranks_mesh import mesh
from ranks_steps import adapt, computing, even, sleeping, tuned
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from penstock.shards import scan


def epoch(shards, out, ranks):
    """Every batch of an epoch, with an all-reduce after each, as a training would have it."""
    loader = make_loader(shards, ranks)
    batches, together = [], torch.zeros(1)
    for batch in loader:
        batches.append(batch["__key__"])
        workers = loader.stats().engine.workers
        distributed.all_reduce(together)
    read = loader.stats().engine.bytes_read
    loader.close()
    return {"batches": batches, "length": len(loader), "bytes": read, "workers": workers}


def train(shards, out, ranks):
    """The loss of the whole global batch, step by step, and the weight at the end."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 1, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for batch in make_loader(shards, ranks, executor="thread"):
        loss = (model(batch["x"]).squeeze(1) - batch["x"].sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        distributed.all_reduce(whole)
        losses.append(whole.item() / ranks)
    return {"losses": losses, "weight": model.module.weight.flatten().tolist()}


def begin(shards, out, ranks):
    """The first steps, and where they leave off."""
    loader = make_loader(shards, ranks, executor="thread")
    batches = [batch["__key__"] for _, batch in zip(range(MIDDLE), loader, strict=False)]
    state = loader.state_dict()
    loader.close()
    if distributed.get_rank() == 0:
        (out / "state.json").write_text(json.dumps(state))
    return {"batches": batches}


def resume(shards, out, ranks):
    """The rest of them, on another number of ranks."""
    loader = make_loader(shards, ranks, executor="thread")
    loader.load_state_dict(json.loads((out / "state.json").read_text()))
    return {"batches": [batch["__key__"] for batch in loader]}


def index(shards, out, ranks):
    """Which shards this rank walked, where none was indexed."""
    walk, walked = scan.scan_shard, []
    scan.scan_shard = lambda path: walked.append(path) or walk(path)
    return {"samples": make_loader(shards, ranks).stats().epoch_samples, "walked": walked}


JOBS = [
    *((epoch, ranks) for ranks in (1, 2, 4, 8)),
    *((train, 1), (train, 4), (begin, 4), (resume, 2), (index, 8), (mesh, 1), (mesh, 4)),
    *((sleeping, 2), (sleeping, 4), (computing, 2), (computing, 4), (even, 2)),
    *((adapt, 2), (tuned, 2)),
]


def be(rank, ranks, work, shards, out):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    meet = f"file://{out}/meet-{work.__name__}-{ranks}"
    distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    found = work(shards, out, ranks)
    (out / f"{work.__name__}-{ranks}-{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def start(rank, ranks, work, shards, out):
    pid = os.fork()
    if pid:
        return pid
    try:
        be(rank, ranks, work, shards, out)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main(shards, out):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for work, ranks in JOBS:
        if work is index:
            for sidecar in Path(shards).glob("*.pidx"):
                sidecar.unlink()
        pids = [start(rank, ranks, work, shards, out) for rank in range(ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if any(codes):
            sys.exit(f"{work.__name__} on {ranks} ranks ended with {codes}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
