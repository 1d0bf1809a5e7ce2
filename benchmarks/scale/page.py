"""docs/scale.md, from the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from textwrap import fill

from benchmarks.document import Finding, table_markdown
from benchmarks.result import Line, Table, machine
from benchmarks.scale.judge import WITHIN, Judged
from benchmarks.scale.reach import COLUMNS, PER_NODE, Training, site_of
from penstock.core.format import format_byte_rate, format_bytes, format_duration

DOCUMENT = Path(__file__).parents[2] / "docs" / "scale.md"
NEAR = 0.8
JUDGED_COLUMNS = ("load", "ranks", "predicted", "measured", "error", "from caches", "first bound", "")
EXAMPLE = """\
penstock plan run.jsonl --nodes 128 --gpus-per-node 8 \\
    --store-bandwidth 40GB/s --store-requests 50000 --network 100Gbit/s --cache-bytes 8TB
"""
_TEXT = """\
# From one node to a thousand GPUs

Written by `python -m benchmarks.scale --write`.

```
{example}```

`penstock plan` takes the recording, or the probes, of one rank and says what so many ranks ask of the store, of each
node's network, cache and cores; which of these bites first; what they get in the first epoch and later; which lanes,
blocks and shards penstock.Loader needs; what packing would change; and what an epoch costs in bytes and requests, or
in money where `--price-gb` and `--price-requests` say what they cost. A limit that is not given is not guessed: what
is demanded of it is said.

## How it is reckoned

By the laws first. All ranks make one step together, so in steps per second

    X = min(1 / slowest step, W / S, cores / (G · D_cpu),
            network / (G · bytes), BW / (R · bytes), IOPS / (R · requests))

with R ranks, G of them on a node; bytes and requests are those that the node's cache does not have. The slowest step
is the mean of the longest of R draws from the steps that were seen. Then by simulation: every rank with its own
loader, delivering in order as torch's does, on cores, network and cache that the ranks of a node share and a store
that all share, each step ending when the slowest rank is there. A rank draws its batches and its steps from those of
the recording.

**Caches.** Each epoch deals the blocks to ranks anew. So of N nodes each reads another N-th of the dataset every
time, and finds 1 − (1 − 1/N)^(e−1) of it in its cache in epoch e, never more than the cache holds: on 128 nodes the
second epoch finds 1 in 128. A cache of whole shards (`ShardCache`) is another thing: every node needs a part of every
shard, so each would copy all of them.

**Not in it:** the time of the all-reduce itself beyond what recorded steps hold, nodes that differ, a store that
slows down when it is crowded, failures. What strikes all ranks at once is counted as if it struck each on its own.

## Against real ranks

{machine}, {today}, load {load:.1f} when it began.

Each rank is a process with a torch DataLoader of its own (2 workers, prefetch 2), in step with the others by a gloo
all-reduce; all waiting is sleeping, since 8 ranks on 2 cores cannot compute side by side. One rank alone was recorded
by `penstock.watch`; all predictions come from that recording and the store's bandwidth. Samples/s of all ranks, the
median of three runs; with caches, runs of four epochs in the order of penstock.Loader.

{judged}

{near} of {count} within {within:.0%}.

## From 1 to 1024

Two trainings and a site whose figures are assumed, not measured; beyond the 8 ranks above nothing here was run. Of
other figures `penstock plan` says the same.

{sites}
"""


def findings(judged: Sequence[Judged], reached: Mapping[Training, Sequence[tuple[str, ...]]]) -> list[Finding]:
    """For the terminal."""
    near = sum(each.near for each in judged)
    found: list[Finding] = []
    if judged:
        what = f"ranks predicted within {WITHIN:.0%} of the measured rate"
        found.append(Line(what, f"{near}", f"of {len(judged)} runs", near / len(judged), NEAR, "at least"))
        found.append(Table("Predicted from one rank, then measured", JUDGED_COLUMNS, rows(judged), ""))
    return [*found, *(Table(training.name, COLUMNS, list(each), said(training)) for training, each in reached.items())]


def page(judged: Sequence[Judged], reached: Mapping[Training, Sequence[tuple[str, ...]]], load: float) -> str:
    """The whole document; `load` is what others had the machine do, in processes that want a core."""
    return _TEXT.format(
        example=EXAMPLE,
        machine=machine(),
        today=date.today().isoformat(),
        load=load,
        judged=table_markdown(JUDGED_COLUMNS, rows(judged)),
        near=sum(each.near for each in judged),
        count=len(judged),
        within=WITHIN,
        sites="\n\n".join(
            f"### {training.name.capitalize()}\n\n{fill(said(training), 120)}\n\n{table_markdown(COLUMNS, each)}"
            for training, each in reached.items()
        ),
    )


def said(training: Training) -> str:
    """What the table is of."""
    site = site_of(PER_NODE)
    limits = {"store": site.store_bytes_s, "network": site.network_bytes_s, "cache": site.cache_bytes_s}
    store, network, cache = (format_byte_rate(limit or 0.0) for limit in limits.values())
    return (
        f"{training.batch} samples a step and GPU in {format_duration(training.step_s)} "
        f"(± {training.variation:.0%}), {format_bytes(training.sample_bytes)} and "
        f"{format_duration(training.cpu_s)} of a core each, {format_bytes(training.samples * training.sample_bytes)} "
        "in "
        f"all, read in blocks of 2 MiB; nodes of {PER_NODE} GPUs and 128 cores with {network} of network and "
        f"{format_bytes(site.cache_bytes)} of cache at {cache}; a store of {store} and "
        f"{site.store_requests_s:,.0f} requests/s. Samples/s of all ranks; laws and simulation are of the first epoch."
    )


def rows(judged: Sequence[Judged]) -> list[tuple[str, ...]]:
    """Predicted beside measured."""
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
        for each in judged
    ]
