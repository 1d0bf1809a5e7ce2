"""A training under torchrun that is killed once, in the middle of an epoch: `restarted.py SHARDS OUT`.

Every third step is followed by a checkpoint. The keys of each step are written to a file when it is over, by rank and
try.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from ranks_shards import make_loader
from torch import distributed

KILLED_AT = 5
EVERY = 3


def main(shards, out):
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    checkpoint, step = out / "checkpoint.json", 0
    loader = make_loader(shards, ranks, executor="thread")
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        step = saved["step"]
        loader.load_state_dict(saved["loader"])
    with open(out / f"try{attempt}-rank{rank}.jsonl", "w", buffering=1) as log:
        for batch in loader:
            if (attempt, rank, step) == (0, 1, KILLED_AT):
                os.kill(os.getpid(), signal.SIGKILL)
            distributed.all_reduce(torch.ones(1))
            log.write(json.dumps([step, batch["__key__"]]) + "\n")
            step += 1
            if step % EVERY == 0 and rank == 0:
                scratch = out / "scratch.json"
                scratch.write_text(json.dumps({"step": step, "loader": loader.state_dict()}))
                scratch.replace(checkpoint)
            distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
