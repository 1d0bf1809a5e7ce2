"""`penstock shards ls`: what is in there."""

from __future__ import annotations

import msgspec
import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, Require, Shards
from penstock.core.format import format_bytes
from penstock.report.shards import Listing, problem_text
from penstock.report.text import table
from penstock.shards.scan import index_shards
from penstock.shards.validate import check_samples
from penstock.storage.paths import expand_shard_paths

MOST_ROWS = 20


def ls(
    shards: Shards,
    require: Require = None,
    as_json: AsJson = False,
) -> None:
    """Show samples, parts, sizes, codecs and whether the parts pair up.

    Reads the index of each shard, building it where it is missing: headers only, never the data. What a whole
    sample has is taken from what most samples have, unless --require says it.

        penstock shards ls sa1b/ --require .jpg --require _features.npz

    Exit code: 0 all is well, 1 something is amiss, 2 wrong usage, 3 could not finish.
    """
    paths = expand_shard_paths(shards)
    listing = Listing()
    with console.progress("indexing", len(paths)) as bar:
        for scanned in index_shards(paths):
            if scanned.index is None:
                listing.unreadable.append({"shard": scanned.shard, "reason": str(scanned.error)})
            else:
                index = scanned.index.paired_by(require or ())
                listing.add(scanned.shard, index, check_samples(index, require))
            bar.advance(bar.task_ids[0])
    listing.shards.sort(key=lambda shard: shard.shard)
    if as_json:
        console.print_json({**msgspec.to_builtins(listing), "samples": listing.samples, "whole": listing.whole})
    else:
        _print(listing)
    raise typer.Exit(console.OK if listing.healthy else console.FOUND)


def _print(listing: Listing) -> None:
    rows = [
        (
            shard.shard,
            f"{shard.samples:,}",
            f"{shard.parts:,}",
            format_bytes(shard.size_bytes),
            problem_text(shard.problems.items()),
        )
        for shard in listing.shards[:MOST_ROWS]
    ]
    numbers = ("samples", "parts", "bytes")
    columns = ("shard", *numbers, "problems")
    console.out.print(table(f"{len(listing.shards)} shards", columns, rows, right=numbers))
    if len(listing.shards) > MOST_ROWS:
        console.out.print(f"… and {len(listing.shards) - MOST_ROWS} more (--json lists them all)")
    _print_parts(listing)
    for broken in listing.unreadable:
        console.out.print(f"unreadable: {broken['reason']}", markup=False)
    console.out.print(f"{listing.samples:,} samples, {listing.whole:,} of them whole")


def _print_parts(listing: Listing) -> None:
    rows = [
        (
            suffix or "(none)",
            part.codec,
            f"{part.count:,}",
            format_bytes(part.size_bytes),
            format_bytes(part.smallest_bytes or 0),
            format_bytes(part.size_bytes / part.count),
            format_bytes(part.largest_bytes),
        )
        for suffix, part in listing.part_rows()
        if part.count
    ]
    numbers = ("parts", "bytes", "smallest", "mean", "largest")
    console.out.print(table("parts", ("suffix", "codec", *numbers), rows[:MOST_ROWS], right=numbers))
