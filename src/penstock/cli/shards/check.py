"""`penstock shards check`: is every byte what it should be?"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli import console
from penstock.cli.arguments import QUARANTINE, AsJson, Quarantine, Require, Shards, Workers
from penstock.cli.shards.ray_option import Ray, seen_from_all, tasks_on
from penstock.core.format import format_bytes
from penstock.report.text import table
from penstock.shards.check import ShardFlaw, ShardStructure, check_shards
from penstock.storage.paths import expand_shard_paths

MOST_ROWS = 20


def check(
    shards: Shards,
    decode: Annotated[bool, typer.Option("--decode", help="Also decode every part, on all cores.")] = False,
    require: Require = None,
    workers: Workers = None,
    ray: Ray = None,
    quarantine: Quarantine = QUARANTINE,
    as_json: AsJson = False,
) -> None:
    """Verify structure, pairs and checksums; with --decode, every picture and array too.

    The headers are walked anew, whatever the index says, and the pairs made. Where the index knows the CRC32 of the
    parts (packed shards), the data is read and compared. A part that takes its decoder down is found and named.

        penstock shards check --decode 'sa1b/*.tar'

    Exit code: 0 all is well, 1 flaws found (see the quarantine file), 2 wrong usage, 3 could not finish.
    """
    paths = [seen_from_all(path, ray) for path in expand_shard_paths(shards)]
    structures: list[ShardStructure] = []
    flaws: list[ShardFlaw] = []
    with tasks_on(ray, workers) as shared, console.progress("checking", 0) as bar:
        shared += paths
        task = bar.task_ids[0]
        bar.update(task, total=None)
        for event in check_shards(paths, decode=decode, required=require, workers=workers):
            if isinstance(event, ShardStructure):
                structures.append(event)
                flaws += event.flaws
            else:
                flaws += event[1]
                bar.advance(task, len(event[0].samples))
    if flaws:
        quarantine.write_bytes(b"".join(msgspec.json.encode(asdict(flaw)) + b"\n" for flaw in flaws))
    if as_json:
        console.print_json(_document(structures, flaws, quarantine))
    else:
        _print(structures, flaws, quarantine, decode)
    raise typer.Exit(console.FOUND if flaws else console.OK)


def _document(structures: list[ShardStructure], flaws: list[ShardFlaw], quarantine: Path) -> dict[str, object]:
    return {
        "shards": [asdict(structure) for structure in structures],
        "samples": sum(structure.samples for structure in structures),
        "flaws": [asdict(flaw) for flaw in flaws],
        "quarantine": str(quarantine) if flaws else None,
    }


def _print(structures: list[ShardStructure], flaws: list[ShardFlaw], quarantine: Path, decode: bool) -> None:
    per_shard = Counter(flaw.shard for flaw in flaws)
    rows = [
        (
            structure.shard,
            f"{structure.samples:,}",
            format_bytes(structure.size_bytes),
            _looked_at(structure, decode),
            str(per_shard[structure.shard]),
        )
        for structure in sorted(structures, key=lambda structure: -per_shard[structure.shard])[:MOST_ROWS]
    ]
    columns = ("shard", "samples", "bytes", "checked", "flaws")
    console.out.print(table(f"{len(structures)} shards", columns, rows, right=("samples", "bytes", "flaws")))
    if len(structures) > MOST_ROWS:
        console.out.print(f"… and {len(structures) - MOST_ROWS} more (--json lists them all)")
    for flaw in flaws[:MOST_ROWS]:
        where = " ".join(str(value) for value in (flaw.shard, flaw.member, flaw.offset) if value is not None)
        console.out.print(f"{flaw.kind}: {flaw.reason} [{where}]", markup=False, highlight=False, soft_wrap=True)
    if len(flaws) > MOST_ROWS:
        console.out.print(f"… and {len(flaws) - MOST_ROWS} more")
    samples = sum(structure.samples for structure in structures)
    verdict = f"{len(flaws)} flaws, listed in {quarantine}" if flaws else "no flaws"
    console.out.print(f"{samples:,} samples checked: {verdict}", markup=False)


def _looked_at(structure: ShardStructure, decode: bool) -> str:
    looks = ["structure", "pairs"]
    if structure.with_crc:
        looks.append("CRC32")
    if decode:
        looks.append("decoded")
    return ", ".join(looks)
