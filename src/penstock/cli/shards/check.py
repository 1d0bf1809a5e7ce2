"""`penstock shards check`: verifies the structure, the samples and the bytes of shards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import msgspec
import typer

from penstock.cli import console
from penstock.cli.arguments import QUARANTINE, AsJson, NumWorkers, Quarantine, Require, Shards
from penstock.cli.shards.ray_option import Ray, cluster_path, tasks_on
from penstock.core.write_file import write_result
from penstock.report.shards import CheckResult, check_document, check_lines, checked_shards, more_lines
from penstock.shards.check import ShardFlaw, ShardStructure, check_shards
from penstock.storage.paths import expand_shard_paths

RESUMED = "A second call checks all shards again."


def check(
    shards: Shards,
    decode: Annotated[bool, typer.Option("--decode", help="Also decode every part, on all cores.")] = False,
    require: Require = None,
    num_workers: NumWorkers = None,
    ray: Ray = None,
    quarantine: Quarantine = QUARANTINE,
    as_json: AsJson = False,
) -> None:
    """Verify structure, samples and checksums; with --decode, all data.

    The headers are read again whatever the index contains, and the parts are paired. If the index contains the CRC32
    of the parts (packed shards), the data is read and compared. A part that crashes its decoder is found and named.

        penstock shards check --decode 'sa1b/*.tar'

    Exit code: 0 all is well, 1 flaws found (see the quarantine file), 2 wrong usage, 3 could not finish.
    """
    paths = [cluster_path(path, ray) for path in expand_shard_paths(shards)]
    structures: list[ShardStructure] = []
    flaws: list[ShardFlaw] = []
    with tasks_on(ray, num_workers) as shared_files, console.progress("checking shards", len(paths)) as bar:
        shared_files += paths
        headers, data = bar.task_ids[0], bar.add_task("checking samples", total=None, visible=False)
        for event in check_shards(paths, decode=decode, required=require, workers=num_workers):
            if isinstance(event, ShardStructure):
                structures.append(event)
                flaws += event.flaws
                bar.advance(headers)
                if decode or event.with_crc:
                    counted = sum(shard.samples for shard in structures if decode or shard.with_crc)
                    expected = (
                        counted * len(paths) / len(structures)
                    )  # the samples of the other shards are not known yet
                    bar.update(data, total=round(expected), visible=True)
            else:
                flaws += event[1]
                bar.advance(data, len(event[0].samples))
    if flaws:
        write_result(quarantine, b"".join(msgspec.json.encode(asdict(flaw)) + b"\n" for flaw in flaws))
    result = CheckResult(structures, flaws, quarantine, decode)
    if as_json:
        console.print_json(check_document(result))
    else:
        _print(result)
    raise typer.Exit(console.FOUND if flaws else console.OK)


def _print(result: CheckResult) -> None:
    console.out.print(checked_shards(result))
    for line in (*more_lines(len(result.structures)), *check_lines(result)):
        console.print_line(line)
