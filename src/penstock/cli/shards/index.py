"""`penstock shards index`: indexes shards, so that every later start is quick."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, Shards
from penstock.cli.shards.ray_option import Ray, cluster_path, tasks_on
from penstock.shards.cluster.index_tasks import IndexedShard, index_by_tasks
from penstock.shards.scan import SCAN_THREADS, index_shards
from penstock.storage.paths import expand_shard_paths

RESUMED = "The index files that were written are kept: the same command continues."


def index(
    shards: Shards,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Read the headers again although there is an index.")
    ] = False,
    num_readers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Shards read in parallel; with --ray, by each task.  [default: more for a store]"
        ),
    ] = None,
    ray: Ray = None,
    as_json: AsJson = False,
) -> None:
    """Build the index of each shard: the byte range of every part.

    Only tar headers are read. The index is a small .pidx file beside its shard (or in the cache directory, where the
    folder is read-only), bound to the shard's size and modification time, in a store to its ETag: when the shard
    changes, it is built again.

        penstock shards index 'sa1b/*.tar'

    Exit code: 0 all indexed, 1 some shards could not be, 2 wrong usage, 3 could not finish.
    """
    paths = [cluster_path(path, ray) for path in expand_shard_paths(shards)]
    samples = parts = built = 0
    errors: list[str] = []
    with tasks_on(ray) as shared_files, console.progress("indexing", len(paths)) as bar:
        shared_files += paths
        start = time.perf_counter()
        for indexed in _index(paths, rebuild, num_readers, by_tasks=ray is not None):
            if indexed.error is not None:
                errors.append(str(indexed.error))
            samples += indexed.samples
            parts += indexed.parts
            built += indexed.rebuilt
            bar.advance(bar.task_ids[0])
        seconds = time.perf_counter() - start
    if as_json:
        facts = {"shards": len(paths), "built": built, "samples": samples, "parts": parts, "seconds": seconds}
        console.print_json({**facts, "errors": errors})
    else:
        for error in errors:
            console.print_line(error)
        unchanged = len(paths) - built - len(errors)
        console.print_line(
            f"{built} shards indexed, {unchanged} were indexed already, {len(errors)} failed: "
            f"{samples:,} samples in {parts:,} parts, {seconds:.2f} s"
        )
    raise typer.Exit(console.FOUND if errors else console.OK)


def _index(paths: list[str], rebuild: bool, num_readers: int | None, by_tasks: bool) -> Iterator[IndexedShard]:
    """Index by tasks of a cluster, or by threads: on one machine indexing waits for storage more than it computes."""
    if by_tasks:
        return index_by_tasks(paths, rebuild=rebuild, threads=num_readers or SCAN_THREADS)
    return map(IndexedShard.of, index_shards(paths, rebuild=rebuild, threads=num_readers))
