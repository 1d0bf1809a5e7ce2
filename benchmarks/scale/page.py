"""Write docs/scale.md: the explanation of the model, the comparison with real ranks, and the scaling tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from textwrap import fill

from benchmarks.document import Finding, table_markdown
from benchmarks.result import Line, Table, machine
from benchmarks.scale.compare import WITHIN, Comparison
from benchmarks.scale.scaling_table import COLUMNS, GPUS_PER_NODE, Training, assumed_cluster
from penstock.core.format import format_byte_rate, format_bytes, format_duration

DOCUMENT = Path(__file__).parents[2] / "docs" / "scale.md"
MIN_NEAR = 0.8
"""Share of the predictions that must be near the measured rate."""
COMPARISON_COLUMNS = ("load", "ranks", "predicted", "measured", "error", "from caches", "lowest bound", "")
EXAMPLE = """\
penstock plan run.jsonl --nodes 128 --gpus-per-node 8 \\
    --store-bandwidth 40GB/s --store-requests 50000 --network 100Gbit/s --cache-bytes 8TB
"""
_TEXT = """\
# From one node to a thousand GPUs

This page is written by `python -m benchmarks.scale --write`.

```
{example}```

`penstock plan` takes the recording, or the probes, of one rank and reports for many ranks: what they demand of the
store and of each node's network, cache and cores; which of these limits them first; the rate that they reach in the
first epoch and in later ones; the lanes, blocks and shards that penstock.Loader needs; the effect of packing; and the
bytes and requests of an epoch, or their price if `--price-gb` and `--price-requests` are given. If a limit is not
given, none is assumed, and only the demand is reported.

## How the rates are computed

First by bounds. All ranks make one step together, so the number of steps per second is at most

    X = min(1 / slowest step, W / S, cores / (G · C),
            network / (G · bytes), BW / (R · bytes), IOPS / (R · requests))

with R ranks, G of them on each node. A rank has W workers, and each needs S seconds for a batch; C is the time on a
core of a batch and its step. BW and IOPS are the store's bandwidth and its requests per second. Bytes and requests of
a batch are only those that the node's cache does not have. The slowest step is the expected maximum of R draws from
the recorded steps.

Then by simulation: every rank has a loader of its own that delivers in order, as torch's does. The ranks of a node
share its cores, network and cache, and all ranks share the store. A step ends when the slowest rank has finished.
Each rank draws its batches and steps from those of the recording.

**Caches.** Each epoch assigns the blocks to ranks anew. So each of N nodes reads another random N-th of the dataset
in every epoch, and in epoch e its cache holds 1 − (1 − 1/N)^(e−1) of that, but never more than fits: on 128 nodes the
second epoch finds 1 in 128. A cache of whole shards (`ShardCache`) is different: every node needs a part of every
shard, so each node would copy all of them.

**Not modelled:** the time of the all-reduce itself beyond what recorded steps include, nodes that differ, a store
that becomes slower when it is overloaded, and failures. An event that delays all ranks at once counts as if it
delayed each of them independently.

## Compared with real ranks

{machine}, {today}, load average {load_average:.1f} at the start.

Each rank is a process with a torch DataLoader of its own (2 workers, prefetch 2), and steps together with the others
by a gloo all-reduce. All durations are sleeps, because 8 ranks on 2 cores cannot compute at the same time. One rank
alone was recorded by `penstock.watch`; all predictions come from that recording and the store's bandwidth. Samples/s
of all ranks, the median of three runs; the runs with caches have four epochs, in the order of penstock.Loader.

{comparisons}

{near} of {count} within {within:.0%}.

## From 1 to 1024 GPUs

The figures of both trainings and of the cluster are assumed, not measured; beyond the 8 ranks above nothing was run.
`penstock plan` computes the same from the figures that it is given.

{trainings}
"""


def findings(comparisons: Sequence[Comparison], tables: Mapping[Training, Sequence[tuple[str, ...]]]) -> list[Finding]:
    """Return the results for the terminal; `tables` has the rows of each training."""
    near = sum(each.near for each in comparisons)
    found: list[Finding] = []
    if comparisons:
        what, share = f"ranks predicted within {WITHIN:.0%} of the measured rate", near / len(comparisons)
        found.append(Line(what, f"{near}", f"of {len(comparisons)} runs", share, MIN_NEAR, "at least"))
        found.append(Table("Predicted from one rank, then measured", COMPARISON_COLUMNS, _rows(comparisons), ""))
    return [
        *found,
        *(Table(training.name, COLUMNS, list(rows), describe(training)) for training, rows in tables.items()),
    ]


def page(
    comparisons: Sequence[Comparison], tables: Mapping[Training, Sequence[tuple[str, ...]]], load_average: float
) -> str:
    """Return the whole document; `load_average` is that of the machine before the runs began."""
    return _TEXT.format(
        example=EXAMPLE,
        machine=machine(),
        today=date.today().isoformat(),
        load_average=load_average,
        comparisons=table_markdown(COMPARISON_COLUMNS, _rows(comparisons)),
        near=sum(each.near for each in comparisons),
        count=len(comparisons),
        within=WITHIN,
        trainings="\n\n".join(
            f"### {training.name.capitalize()}\n\n{fill(describe(training), 120)}\n\n{table_markdown(COLUMNS, rows)}"
            for training, rows in tables.items()
        ),
    )


def describe(training: Training) -> str:
    """Describe the training and the cluster of a table."""
    cluster = assumed_cluster(GPUS_PER_NODE)
    limits = cluster.store_bytes_s, cluster.network_bytes_s, cluster.cache_bytes_s
    store, network, cache = (format_byte_rate(limit or 0.0) for limit in limits)
    dataset_bytes = training.samples * training.sample_bytes
    return (
        f"Training: {training.batch} samples per GPU in a step of {format_duration(training.step_s)} "
        f"(± {training.variation:.0%}); a sample has {format_bytes(training.sample_bytes)} and takes "
        f"{format_duration(training.cpu_s)} of a core; the dataset has {format_bytes(dataset_bytes)}, read in blocks "
        f"of 2 MiB. Cluster: nodes of {GPUS_PER_NODE} GPUs and 128 cores with a network of {network} and a cache of "
        f"{format_bytes(cluster.cache_bytes)} at {cache}; a store of {store} and {cluster.store_requests_s:,.0f} "
        "requests/s. Rates are samples/s of all ranks; bounds and simulation are of the first epoch."
    )


def _rows(comparisons: Sequence[Comparison]) -> list[tuple[str, ...]]:
    return [
        (
            each.load,
            each.ranks,
            f"{each.predicted:,.0f}",
            f"{each.measured:,.0f}",
            f"{each.error:+.0%}",
            "" if each.hits is None else f"{each.hits[0]:.0%} predicted, {each.hits[1]:.0%} measured",
            each.bound,
            "✓" if each.near else "✗",
        )
        for each in comparisons
    ]
