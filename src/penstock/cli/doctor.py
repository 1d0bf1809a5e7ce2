"""`penstock doctor`: the storage under a path, measured, not guessed."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from penstock.errors import StorageError
from penstock.report.storage import Room, Row, claim_rows, curve_rows
from penstock.report.text import table
from penstock.storage.curve import StorageCurve
from penstock.storage.kind import Storage, identify
from penstock.storage.probe import SAMPLE_BYTES, SAMPLE_BYTES_MAX, probe


def doctor(
    path: Annotated[Path, typer.Argument(exists=True, metavar="PATH", help="A folder of shards, or one shard.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    sample_size: Annotated[
        int,
        typer.Option(
            min=1,
            max=SAMPLE_BYTES_MAX,
            metavar="BYTES",
            help="Size of one sample on disk; measured at the next power of two.",
        ),
    ] = SAMPLE_BYTES,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again, though a curve is kept.")] = False,
) -> None:
    """What is under PATH, and how fast can it feed a GPU?

    Says what the path lies on, seen through partitions, encryption, RAID
    and container layers. Then measures it for about six seconds, past the
    page cache: large reads in order, reads of one sample at random places,
    both with 1 to 32 in flight, and the time to open a file. Reads your own
    files where there are enough, else a scratch file of 256 MiB that is gone
    afterwards. Curves are kept per device for a week.

    Compare "sequential" with what your GPU eats (samples/s × bytes per
    sample): where it is lower, no number of workers will help. Give the
    reader as many reads in flight as "in flight to use" says.

        penstock doctor shards/ --sample-size 2500000

    Exit code: 0 all is well, 1 a row marked ! needs you, 2 wrong usage.
    """
    try:
        storage = identify(path)
        rows = list(claim_rows(storage, _room(storage.path)))
    except OSError as error:
        typer.echo(f"penstock doctor: {error}", err=True)
        raise typer.Exit(1) from error
    curve: StorageCurve | None = None
    try:
        with Console(stderr=True).status("measuring the storage …"):
            curve = probe(path, sample_bytes=sample_size, refresh=refresh)
        rows += curve_rows(storage, curve, time.time() - curve.measured_unix_s)
    except StorageError as error:
        rows.append(Row("measured", "no", str(error), ok=False))
    if as_json:
        typer.echo(json.dumps(_document(storage, curve, rows), indent=2))
    else:
        _print(path, curve, rows)
    raise typer.Exit(0 if all(row.ok for row in rows) else 1)


def _room(path: Path) -> Room:
    folder = path if path.is_dir() else path.parent
    usage = shutil.disk_usage(folder)
    return Room(os.access(folder, os.W_OK), usage.free, usage.total)


def _print(path: Path, curve: StorageCurve | None, rows: list[Row]) -> None:
    console = Console()
    lines = [("" if row.ok else "!", row.name, row.value, row.meaning) for row in rows]
    console.print(table(f"storage under {path}", ("", "what", "found", "which means"), lines))
    if curve is None:
        return
    columns = ("in flight", "sequential MB/s", "random reads/s", "random MB/s")
    numbers = [
        (
            str(point.in_flight),
            f"{point.sequential_mb_per_s:,.0f}",
            f"{point.random_reads_per_s:,.0f}",
            f"{curve.random_mb_per_s(point):,.0f}",
        )
        for point in curve.points
    ]
    console.print(table("measured curve", columns, numbers, right=columns))


def _document(storage: Storage, curve: StorageCurve | None, rows: list[Row]) -> dict[str, Any]:
    parts = {"storage": storage, "curve": curve, "rows": rows}
    document: dict[str, Any] = msgspec.to_builtins(parts, enc_hook=str)
    needed = curve.in_flight_needed() if curve else None
    return {**document, "in_flight": needed, "ok": all(row.ok for row in rows)}
