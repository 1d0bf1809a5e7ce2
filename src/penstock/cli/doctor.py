"""`penstock doctor`: the machine, the storage under a path, a script's DataLoaders: measured, not guessed."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from penstock.errors import SettingError, StorageError
from penstock.plan.doctor.examine import DoctorReport, examine
from penstock.probe.storage import SAMPLE_BYTES, SAMPLE_BYTES_MAX, probe_storage, storage_facts
from penstock.probe.storage_curve import StorageCurve
from penstock.report.doctor import as_checks, check_table
from penstock.report.storage import StorageRow, WritableSpace, claim_rows, curve_rows
from penstock.report.text import table
from penstock.storage.mounts import StorageFacts
from penstock.storage.object_store.url import is_remote, redact_url


def there(path: str | None) -> str | None:
    """A path that is not there is wrong usage; of a URL the store will say."""
    if path is not None and not is_remote(path) and not Path(path).exists():
        raise typer.BadParameter(f"Path '{path}' does not exist.")
    return path


def doctor(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH", callback=there, help="A folder of shards, or one shard; or its URL (s3://bucket/folder/)."
        ),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, metavar="FILE", help="A training script; it is read, not run."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    sample_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=SAMPLE_BYTES_MAX,
            metavar="BYTES",
            help=f"Size of one sample under PATH; measured at the next power of two.  [default: {SAMPLE_BYTES}]",
        ),
    ] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again, though a curve is kept.")] = False,
) -> None:
    """Can this machine feed a GPU, and what is under PATH?

    Looks at the cores that may really be used, memory and its limits,
    /dev/shm, swap, open files, NUMA, the GPU and its link, versions. With
    PATH, says what it lies on, seen through partitions, encryption, RAID
    and container layers, and measures it for about six seconds, past the
    page cache: large reads in order, reads of one sample at random places,
    both with 1 to 32 in flight, and the time to open a file. Reads your own
    files where there are enough, else a scratch file of 256 MiB that is gone
    afterwards. Of a bucket, requests are timed and ranges read of objects that
    are there, 4 GiB at most. Curves are kept per device for a week. With --script, says
    how its DataLoaders suit this machine.

    Compare "sequential" with what your GPU eats (samples/s × bytes per
    sample): where it is lower, no number of workers will help. Give the
    reader as many reads in flight as "in flight to use" says.

        penstock doctor shards/ --sample-size 2500000

        penstock doctor --script train.py

    ✓ good, ! costs something, ✗ will fail or crawl, – not known or not there.

    Exit code: 0 all is well, 1 a row marked ! or ✗ needs you, 2 wrong usage.
    """
    if path is None and (refresh or sample_size is not None):
        raise SettingError("--refresh and --sample-size are about the storage", advice="Give its PATH, too")
    examined = examine(script)
    under = None if path is None else _look_under(path, sample_size or SAMPLE_BYTES, refresh)
    ok = examined.ok and (under is None or all(row.ok for row in under.rows))
    if as_json:
        typer.echo(json.dumps({**_document(examined, under), "ok": ok}, indent=2))
    else:
        _print(examined, under, script)
    raise typer.Exit(0 if ok else 1)


@dataclass(frozen=True, slots=True)
class _StorageFacts:
    """What is known of the storage under a path."""

    path: str
    storage: StorageFacts | None
    curve: StorageCurve | None
    rows: list[StorageRow]


def _look_under(path: str, sample_bytes: int, refresh: bool) -> _StorageFacts:
    """Claim and curve; what cannot be had is a row that says why."""
    storage: StorageFacts | None = None
    curve: StorageCurve | None = None
    rows: list[StorageRow] = []
    try:
        storage = storage_facts(path)
        rows += claim_rows(storage, None if is_remote(path) else _room(storage.path))
        with Console(stderr=True).status("measuring the storage …"):
            curve = probe_storage(path, sample_bytes=sample_bytes, refresh=refresh)
        rows += curve_rows(storage, curve, time.time() - curve.measured_unix_s)
    except StorageError as error:
        rows.append(StorageRow("measured", "no", str(error), ok=False))
    except OSError as error:
        rows.append(StorageRow("storage", "not known", str(error), ok=False))
    return _StorageFacts(path, storage, curve, rows)


def _room(path: Path) -> WritableSpace:
    folder = path if path.is_dir() else path.parent
    usage = shutil.disk_usage(folder)
    return WritableSpace(os.access(folder, os.W_OK), usage.free, usage.total)


def _print(examined: DoctorReport, under: _StorageFacts | None, script: Path | None) -> None:
    console = Console()
    console.print(check_table("this machine", examined.machine))
    if script is not None:
        console.print(check_table(f"DataLoaders in {script}", examined.script))
    if under is None:
        return
    console.print(check_table(f"storage under {redact_url(under.path)}", as_checks(under.rows)))
    if under.curve is not None:
        _print_curve(console, under.curve)


def _print_curve(console: Console, curve: StorageCurve) -> None:
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


def _document(examined: DoctorReport, under: _StorageFacts | None) -> dict[str, Any]:
    parts = {
        "machine": examined.machine,
        "script": examined.script,
        "storage": under.storage if under else None,
        "curve": under.curve if under else None,
        "rows": under.rows if under else [],
        "in_flight": under.curve.in_flight_needed() if under and under.curve else None,
    }
    document: dict[str, Any] = msgspec.to_builtins(parts, enc_hook=str)
    return document
