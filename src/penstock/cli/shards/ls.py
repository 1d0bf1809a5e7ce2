"""`penstock shards ls`: lists shards with their samples and parts."""

from __future__ import annotations

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, Require, Shards
from penstock.report.shards import (
    Listing,
    listing_document,
    listing_lines,
    listing_parts,
    listing_shards,
    more_lines,
)
from penstock.shards.scan import index_shards
from penstock.shards.validate import check_samples
from penstock.storage.paths import expand_shard_paths


def ls(
    shards: Shards,
    require: Require = None,
    as_json: AsJson = False,
) -> None:
    """Show samples, parts, sizes, codecs and whether samples are complete.

    Reads the index of each shard, building it where it is missing: headers only, never the data. The parts of most
    samples are taken as those of a complete sample, unless --require names them. Names that were joined to a sample by
    inference are listed, and members that belong to no sample, such as directories.

        penstock shards ls sa1b/ --require '.jpg|.png' --require _features.npz

    Exit code: 0 all is well, 1 a shard has problems, 2 wrong usage, 3 could not finish.
    """
    paths = expand_shard_paths(shards)
    listing = Listing()
    with console.progress("indexing", len(paths)) as bar:
        for scanned in index_shards(paths):
            if scanned.index is None:
                listing.unreadable.append({"shard": scanned.shard, "reason": str(scanned.error)})
            else:
                index = scanned.index.paired_by(require or ())
                listing.add(scanned.shard, index, check_samples(index, require), require or ())
            bar.advance(bar.task_ids[0])
    listing.shards.sort(key=lambda shard: shard.shard)
    if as_json:
        console.print_json(listing_document(listing))
    else:
        _print(listing)
    raise typer.Exit(console.OK if listing.healthy else console.FOUND)


def _print(listing: Listing) -> None:
    console.out.print(listing_shards(listing))
    for line in more_lines(len(listing.shards)):
        console.print_line(line)
    console.out.print(listing_parts(listing))
    for line in listing_lines(listing):
        console.print_line(line)
