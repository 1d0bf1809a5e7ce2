"""Jobs of ranks that train with torch's own loaders: steps of which one rank's is slow, settings that are found."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from tests.support.adaptive_helpers import Numbers, Told
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from penstock.core.cores import rank_cores
from penstock.tuner.adaptive import controller as window
from penstock.tuner.adaptive.loader import AdaptiveLoader
from penstock.tuner.result import Setting
from penstock.tuner.tune import tune
from penstock.watcher.callbacks.training import WatchedTraining

STEPS = 60
SLOW_S = 0.04
"""Far more than a busy machine adds to a step: why it is slow is told by where most of it went."""
SAMPLES, BATCH = 120, 3
LATENCY_S = 0.004


class Net(torch.nn.Module):
    """With something more to do on the last rank."""

    def __init__(self, more):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.more = more

    def forward(self, x):
        self.more()
        return self.layer(x)


def _sleep():
    time.sleep(SLOW_S)


def _compute():
    numbers, until = torch.rand(128, 128), time.thread_time() + SLOW_S
    while time.thread_time() < until:
        numbers @ numbers


def _nothing():
    pass


def _train(out, more, name):
    """Watched as a callback would watch it; the last rank does more in its forward pass."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    model = DistributedDataParallel(Net(more if rank == ranks - 1 else _nothing))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watched = WatchedTraining(out / f"{name}-{ranks}.jsonl", live=False)
    watched.begin(rank)
    for (x,) in DataLoader(TensorDataset(torch.rand(STEPS, 64)), batch_size=1):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    watched.end()
    return {}


def sleeping(shards, out, ranks):
    """A rank that waits for something in its step."""
    return _train(out, _sleep, "sleeping")


def computing(shards, out, ranks):
    """A rank that has more to compute."""
    return _train(out, _compute, "computing")


def even(shards, out, ranks):
    """Ranks alike."""
    return _train(out, _nothing, "even")


def adapt(shards, out, ranks):
    """Two epochs, each rank changing its settings at other times, all of them in step."""
    rank = distributed.get_rank()
    window.ROUNDS, window.LEAST_S = 1 + rank, 0.0
    sampler = DistributedSampler(Numbers(SAMPLES), seed=3)
    turns = (Setting(1), Setting(2, 1), Setting(1, 4)) if rank else (Setting(2), Setting(1), Setting(3, 1), Setting(2))
    loader = AdaptiveLoader(Numbers(SAMPLES), batch_size=BATCH, sampler=sampler, controller=Told(*turns))
    plain = DataLoader(Numbers(SAMPLES), batch_size=BATCH, sampler=sampler)
    found = {"batches": [], "plain": []}
    for epoch in range(2):
        sampler.set_epoch(epoch)
        together = torch.zeros(1)
        for batch in loader:
            distributed.all_reduce(together)
            found["batches"].append(batch.tolist())
        found["plain"] += [batch.tolist() for batch in plain]
    return {**found, "changes": len(loader.decisions)}


class Remote(Dataset):
    """Every sample takes a while to come."""

    def __len__(self):
        return 2000

    def __getitem__(self, at):
        time.sleep(LATENCY_S)
        return torch.tensor(at)


def tuned(shards, out, ranks):
    """What each rank was told, and what it took: twice, the second time anew."""
    sampler = DistributedSampler(Remote(), seed=3)
    loader = DataLoader(Remote(), batch_size=4, sampler=sampler)
    asked = [{"step_s": 0.001}, {"step_s": 0.001, "refresh": True}]
    told = [tune(loader, seconds=1.0, **question) for question in asked]
    return {
        "kwargs": [json.loads(json.dumps(dict(found.kwargs))) for found in told],
        "rates": [found.samples_s for found in told],
        "remembered": [found.remembered for found in told],
        "reasons": [list(found.reasons) for found in told],
        "share": rank_cores(),
    }
