"""Jobs of ranks with torch's own DataLoader: trainings in which one rank has slow steps, and tuned settings."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from tests.support.adaptive_helpers import Numbers, ScheduledPolicy
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from penstock.core.cores import rank_cores
from penstock.tuner.adaptive import controller as window
from penstock.tuner.adaptive.loader import AdaptiveLoader
from penstock.tuner.result import WorkerSettings
from penstock.tuner.tune import tune
from penstock.watcher.callbacks.training import WatchedTraining

STEPS = 60
SLOW_S = 0.04
"""Far more than a busy machine adds to a step, since the cause is found from where most of the time went."""
SAMPLES, BATCH = 120, 3
LATENCY_S = 0.004


class Net(torch.nn.Module):
    """A model whose forward pass has more to do on the last rank."""

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
    """Train, watched as by a callback; the last rank does more in its forward pass."""
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
    """Train with one rank that waits in its step."""
    return _train(out, _sleep, "sleeping")


def computing(shards, out, ranks):
    """Train with one rank that computes more."""
    return _train(out, _compute, "computing")


def even(shards, out, ranks):
    """Train with ranks that are all the same."""
    return _train(out, _nothing, "even")


def adapt(shards, out, ranks):
    """Run two epochs in which each rank changes its settings at other times, with a collective in each step."""
    rank = distributed.get_rank()
    window.MIN_ROUNDS, window.MIN_WINDOW_S = 1 + rank, 0.0
    sampler = DistributedSampler(Numbers(SAMPLES), seed=3)
    settings = (
        (WorkerSettings(1), WorkerSettings(2, 1), WorkerSettings(1, 4))
        if rank
        else (WorkerSettings(2), WorkerSettings(1), WorkerSettings(3, 1), WorkerSettings(2))
    )
    loader = AdaptiveLoader(Numbers(SAMPLES), batch_size=BATCH, sampler=sampler, controller=ScheduledPolicy(*settings))
    plain = DataLoader(Numbers(SAMPLES), batch_size=BATCH, sampler=sampler)
    result = {"batches": [], "plain": []}
    for epoch in range(2):
        sampler.set_epoch(epoch)
        reduced = torch.zeros(1)
        for batch in loader:
            distributed.all_reduce(reduced)
            result["batches"].append(batch.tolist())
        result["plain"] += [batch.tolist() for batch in plain]
    return {**result, "changes": len(loader.decisions)}


class Remote(Dataset):
    """A dataset in which every sample takes some time."""

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        time.sleep(LATENCY_S)
        return torch.tensor(index)


def tuned(shards, out, ranks):
    """Return the settings that each rank got, and their source; the second time they are measured again."""
    sampler = DistributedSampler(Remote(), seed=3)
    loader = DataLoader(Remote(), batch_size=4, sampler=sampler)
    questions = [{"step_s": 0.001}, {"step_s": 0.001, "refresh": True}]
    results = [tune(loader, seconds=1.0, **question) for question in questions]
    return {
        "kwargs": [json.loads(json.dumps(dict(result.kwargs))) for result in results],
        "rates": [result.samples_s for result in results],
        "remembered": [result.remembered for result in results],
        "reasons": [list(result.reasons) for result in results],
        "share": rank_cores(),
    }
