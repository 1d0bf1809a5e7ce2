"""Compare the model with real ranks: record one rank, predict the rate of more ranks from it, then time those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.scale.real_ranks import RanksRun, run_ranks
from benchmarks.scale.sleeping_loads import LOADS, SHARED, SleepingLoad
from penstock.core.cores import usable_cores
from penstock.diagnose.verdict import diagnose_run
from penstock.plan.fleet.cluster import Cluster, cache_hit_share
from penstock.plan.fleet.forecast import FleetEpoch, forecast_epoch
from penstock.plan.fleet.rank_need import RankNeed, need_from_diagnosis
from penstock.recording.reader import load as load_recording

WITHIN = 0.15
"""Relative error up to which a prediction counts as near."""
RANKS = (1, 2, 4, 8)
ROUNDS = 3
RECORDED_STEPS = 120
"""Steps of the rank that is recorded; the model takes the variation of steps from them."""
CACHED_NODES, CACHED_RANKS_PER_NODE = 4, 2
"""The nodes, and the ranks of each, of the run with caches."""
EPOCHS = 4
"""Epochs of the run with caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The predicted and the measured rate of one number of ranks, or of one epoch."""

    load: str
    ranks: str
    predicted: float
    """Samples per second of all ranks."""
    measured: float
    bound: str
    """Name of the lowest bound."""
    hits: tuple[float, float] | None = None
    """Share of the samples from caches: predicted and measured; None without caches."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def near(self) -> bool:
        return abs(self.error) <= WITHIN


def compare(
    folder: Path, loads: Sequence[SleepingLoad] = LOADS, rank_counts: Sequence[int] = RANKS
) -> Iterator[Comparison]:
    """Yield a comparison for each load and number of ranks, of the median of ROUNDS runs; then those with caches."""
    for load in loads:
        need = record_need(load, folder)
        for ranks in rank_counts:
            forecast = predict(need, load, ranks_per_node=ranks)
            run = RanksRun(load=load, folder=folder, ranks_per_node=ranks)
            measured = median(run_ranks(run)[0].samples_s for _ in range(ROUNDS))
            yield _comparison(load.name, str(ranks), forecast, measured)
    yield from _compare_with_caches(folder)


def record_need(load: SleepingLoad, folder: Path, steps: int = RECORDED_STEPS) -> RankNeed:
    """Record one rank alone, and return its need as `penstock plan` does."""
    record = folder / f"{load.name.replace(' ', '-')}.jsonl"
    record.unlink(missing_ok=True)
    run_ranks(RanksRun(load=load, folder=folder, steps=steps, record=record))
    return need_from_diagnosis(diagnose_run(load_recording(record)))


def predict(
    need: RankNeed, load: SleepingLoad, *, nodes: int = 1, ranks_per_node: int = 1, hits: float = 0.0
) -> FleetEpoch:
    """Forecast ranks on this machine, whose cores are divided between the nodes.

    The model is given the store's bandwidth, as a user would give it.
    """
    cluster = Cluster(
        nodes=nodes, gpus_per_node=ranks_per_node, cores=usable_cores() / nodes, store_bytes_s=load.store_bytes_s
    )
    return forecast_epoch(need, cluster, "", hits)


def _compare_with_caches(folder: Path) -> Iterator[Comparison]:
    """Yield a comparison for each epoch of nodes with caches, in the order of penstock.Loader."""
    need = record_need(SHARED, folder)
    nodes, ranks_per_node = CACHED_NODES, CACHED_RANKS_PER_NODE
    runs = []
    for number in range(ROUNDS):
        scratch = folder / f"cached{number}"
        scratch.mkdir()
        run = RanksRun(
            load=SHARED, folder=scratch, nodes=nodes, ranks_per_node=ranks_per_node, epochs=EPOCHS, cached=True
        )
        runs.append(run_ranks(run))
    dataset_bytes = 1.0  # the size does not matter, because the caches hold all of it
    cluster = Cluster(nodes=nodes, gpus_per_node=ranks_per_node, cache_bytes=dataset_bytes)
    for epoch, results in enumerate(zip(*runs, strict=True), 1):
        hits = cache_hit_share(cluster, dataset_bytes, epoch)
        forecast = predict(need, SHARED, nodes=nodes, ranks_per_node=ranks_per_node, hits=hits)
        measured = median(result.samples_s for result in results)
        measured_hits = median(result.hits for result in results)
        ranks = f"{nodes} × {ranks_per_node}, epoch {epoch}"
        yield _comparison("the same with a cache per node", ranks, forecast, measured, (hits, measured_hits))


def _comparison(
    load: str, ranks: str, forecast: FleetEpoch, measured: float, hits: tuple[float, float] | None = None
) -> Comparison:
    return Comparison(
        load=load,
        ranks=ranks,
        predicted=forecast.samples_s,
        measured=measured,
        bound=forecast.limits[0].name.replace("_", " "),
        hits=hits,
    )
