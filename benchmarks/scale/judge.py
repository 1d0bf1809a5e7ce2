"""One rank is recorded; from that the model says what more of them give; then they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.scale.real import Course, run_ranks
from benchmarks.scale.toys import SHARED, TOYS, Toy
from penstock.core.cores import usable_cores
from penstock.diagnose.verdict import diagnose_run
from penstock.plan.fleet.cluster import Cluster, cache_hit_share
from penstock.plan.fleet.forecast import FleetEpoch, forecast_epoch
from penstock.plan.fleet.rank_need import RankNeed, need_from_diagnosis
from penstock.recording.reader import load

WITHIN = 0.15
RANKS = (1, 2, 4, 8)
ROUNDS = 3
RECORDED_STEPS = 120
"""Of one rank: as many steps as its variation is taken from."""
CACHED = (4, 2)
"""Nodes and ranks of each, for the run with caches."""
EPOCHS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One number of ranks, or one epoch."""

    load: str
    ranks: str
    predicted: float
    """Samples per second of all ranks."""
    measured: float
    bound: str
    """The name of the one that bites first."""
    hits: tuple[float, float] | None = None
    """From caches: share predicted, share measured."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def near(self) -> bool:
        return abs(self.error) <= WITHIN


def judge(folder: Path, toys: Sequence[Toy] = TOYS, numbers: Sequence[int] = RANKS) -> Iterator[Judged]:
    """Each load on each number of ranks, the median of some runs; then caches, by epoch."""
    for toy in toys:
        need = recorded(toy, folder)
        for number in numbers:
            said = predicted(need, toy, ranks_per_node=number)
            course = Course(toy=toy, folder=folder, ranks_per_node=number)
            measured = median(run_ranks(course)[0].samples_s for _ in range(ROUNDS))
            yield _judged(toy.name, str(number), said, measured)
    yield from _with_caches(folder)


def recorded(toy: Toy, folder: Path, steps: int = RECORDED_STEPS) -> RankNeed:
    """Of one rank alone, as `penstock plan` reads it."""
    record = folder / f"{toy.name.replace(' ', '-')}.jsonl"
    record.unlink(missing_ok=True)
    run_ranks(Course(toy=toy, folder=folder, steps=steps, record=record))
    return need_from_diagnosis(diagnose_run(load(record)))


def predicted(need: RankNeed, toy: Toy, *, nodes: int = 1, ranks_per_node: int = 1, hits: float = 0.0) -> FleetEpoch:
    """On this machine, whose cores all nodes share; the store's bandwidth is told, as a user would tell it."""
    site = Cluster(
        nodes=nodes, gpus_per_node=ranks_per_node, cores=usable_cores() / nodes, store_bytes_s=toy.store_bytes_s
    )
    return forecast_epoch(need, site, "", hits)


def _with_caches(folder: Path) -> Iterator[Judged]:
    """Nodes that keep what they read, and the loader's own order."""
    need, (nodes, each) = recorded(SHARED, folder), CACHED
    runs = []
    for number in range(ROUNDS):
        scratch = folder / f"cached{number}"
        scratch.mkdir()
        course = Course(toy=SHARED, folder=scratch, nodes=nodes, ranks_per_node=each, epochs=EPOCHS, cached=True)
        runs.append(run_ranks(course))
    holding = Cluster(nodes=nodes, gpus_per_node=each, cache_bytes=1.0)  # all of a dataset of this size
    for epoch, rans in enumerate(zip(*runs, strict=True), 1):
        hits = cache_hit_share(holding, 1.0, epoch)
        said = predicted(need, SHARED, nodes=nodes, ranks_per_node=each, hits=hits)
        measured, found = median(ran.samples_s for ran in rans), median(ran.hits for ran in rans)
        ranks = f"{nodes} × {each}, epoch {epoch}"
        yield _judged("the same with a cache per node", ranks, said, measured, (hits, found))


def _judged(
    load: str, ranks: str, said: FleetEpoch, measured: float, hits: tuple[float, float] | None = None
) -> Judged:
    return Judged(
        load=load,
        ranks=ranks,
        predicted=said.samples_s,
        measured=measured,
        bound=said.limits[0].name.replace("_", " "),
        hits=hits,
    )
