"""A training on two of Ray Train's workers: `trained_by_ray.py SHARDS OUT`."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

import ray


def train(config):
    sys.path.insert(0, config["folder"])
    from ranks_shards import make_loader

    from penstock.core.ranks import local_rank
    from penstock.data.order.ranks import find_ranks

    ranks, local = find_ranks(None, None), local_rank()
    loader = make_loader(config["shards"], ranks.world_size)
    batches = [batch["__key__"] for batch in loader]
    loader.close()
    found = {"ranks": [ranks.rank, ranks.world_size], "local": [local.rank, local.world_size], "batches": batches}
    Path(config["out"], f"rank{ranks.rank}.json").write_text(json.dumps(found))


def main(shards, out):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    TorchTrainer(
        train,
        train_loop_config={"shards": shards, "out": out, "folder": str(Path(__file__).parent)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=f"{out}/ray"),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
