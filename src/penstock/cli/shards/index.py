"""`penstock shards index`: once, so that every later start is quick."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson
from penstock.shards.scan import SCAN_THREADS, index_all
from penstock.storage.paths import expand


def index(
    shards: Annotated[
        list[str], typer.Argument(help="Shards: files, folders, globs, or ranges like s-{000..127}.tar.")
    ],
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Walk the headers again, though an index is there.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Shards walked side by side.")] = SCAN_THREADS,
    as_json: AsJson = False,
) -> None:
    """Build the index of each shard: where every part of every sample lies.

    Only tar headers are read. The index is a small .pidx file beside its shard (or in the cache directory, where the
    folder is read-only), bound to the shard's size and modification time: when the shard changes it is built anew.

        penstock shards index 'sa1b/*.tar'

    Exit code: 0 all indexed, 1 some shards could not be, 2 wrong usage.
    """
    paths = expand(shards)
    samples = parts = built = 0
    errors: list[str] = []
    start = time.perf_counter()
    with console.progress("indexing", len(paths)) as bar:
        for scanned in index_all(paths, rebuild=rebuild, threads=threads):
            if scanned.index is None:
                errors.append(str(scanned.error))
            else:
                samples += len(scanned.index)
                parts += scanned.index.parts
                built += scanned.fresh
            bar.advance(bar.task_ids[0])
    seconds = time.perf_counter() - start
    if as_json:
        facts = {"shards": len(paths), "built": built, "samples": samples, "parts": parts, "seconds": seconds}
        console.print_json({**facts, "errors": errors})
    else:
        for error in errors:
            console.out.print(error, markup=False)
        kept = len(paths) - built - len(errors)
        console.out.print(
            f"{built} shards indexed, {kept} were so already, {len(errors)} failed: "
            f"{samples:,} samples in {parts:,} parts, {seconds:.2f} s"
        )
    raise typer.Exit(console.FOUND if errors else console.OK)
