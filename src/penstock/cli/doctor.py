"""`penstock doctor`: checks the machine, the storage under a path, and a script's DataLoaders."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, Refresh, StoragePath, parse_bytes
from penstock.core.format import format_bytes
from penstock.errors import SettingError, StorageError
from penstock.plan.doctor.examine import DoctorReport, examine
from penstock.probe.storage import BUDGET_S, SAMPLE_BYTES, SAMPLE_BYTES_MAX, probe_storage, storage_facts
from penstock.probe.storage_curve import StorageCurve
from penstock.report.doctor import (
    StorageRow,
    WritableSpace,
    as_checks,
    check_summary,
    check_table,
    claim_rows,
    curve_rows,
    curve_table,
)
from penstock.storage.mounts import StorageFacts
from penstock.storage.object_store.url import is_remote, redact_url


def doctor(
    path: StoragePath = None,
    script: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, metavar="FILE", help="A training script; it is read, not run."),
    ] = None,
    sample_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of one sample under PATH, like 2.5MB; measured at the next power of two.  [default: 512KiB]",
        ),
    ] = None,
    refresh: Refresh = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain every row, and show the curve of the storage.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Can this machine keep a GPU busy, and what storage is under PATH?

    Checks the cores that may really be used, memory and its limits,
    /dev/shm, swap, open files, NUMA, the GPU and its link, versions. With
    PATH, shows the storage below partitions, encryption, RAID and container
    layers, and measures it for about six seconds, past the page cache:
    large sequential reads, reads of one sample at random offsets, both with
    1 to 32 in flight, and the time to open a file. Reads your own files if
    there are enough, else a temporary file of 256 MiB. Of a bucket,
    requests are timed and ranges of existing objects are read, at most
    4 GiB. Curves are cached per device for a week. With --script, shows how
    well its DataLoaders suit this machine. What is wrong comes first, with
    its meaning; --explain shows the meaning of every row.

    Compare "sequential" with what your GPU consumes (samples/s × bytes per
    sample): if it is lower, no number of workers will help. Give the loader
    as many reads in flight as "in flight to use" shows.

        penstock doctor shards/ --sample-bytes 2.5MB

        penstock doctor --script train.py

    ✓ good, ! costs something, ✗ will fail or be very slow, – not known.

    Exit code: 0 all is well, 1 rows are marked ! or ✗, 2 wrong usage.
    """
    if path is None and (refresh or sample_bytes is not None):
        raise SettingError("--refresh and --sample-bytes are about the storage", advice="Give its PATH, too")
    size = SAMPLE_BYTES if sample_bytes is None else _parse_sample_bytes(sample_bytes)
    with console.busy("checking the machine"):
        examined = examine(script)
    storage = None if path is None else _check_storage(path, size, refresh)
    ok = examined.ok and (storage is None or all(row.ok for row in storage.rows))
    if as_json:
        console.print_json({**_document(examined, storage), "ok": ok})
    else:
        _print(examined, storage, script, explain)
    raise typer.Exit(console.OK if ok else console.FOUND)


def _parse_sample_bytes(text: str) -> int:
    size = int(parse_bytes(text, "--sample-bytes"))
    if not 1 <= size <= SAMPLE_BYTES_MAX:
        raise SettingError(f"--sample-bytes: {text} is not from 1 B to {format_bytes(SAMPLE_BYTES_MAX)}")
    return size


@dataclass(frozen=True, slots=True)
class _StorageCheck:
    """The facts about the storage under a path."""

    path: str
    storage: StorageFacts | None
    curve: StorageCurve | None
    rows: list[StorageRow]


def _check_storage(path: str, sample_bytes: int, refresh: bool) -> _StorageCheck:
    """Return the facts and the curve of a storage; if one cannot be had, a row has the reason."""
    storage: StorageFacts | None = None
    curve: StorageCurve | None = None
    rows: list[StorageRow] = []
    try:
        storage = storage_facts(path)
        rows += claim_rows(storage, None if is_remote(path) else _writable_space(storage.path))
        with console.timed("measuring the storage", BUDGET_S):
            curve = probe_storage(path, sample_bytes=sample_bytes, refresh=refresh)
        rows += curve_rows(storage, curve, time.time() - curve.measured_unix_s)
    except StorageError as error:
        rows.append(StorageRow("measured", "no", str(error), ok=False))
    except OSError as error:
        rows.append(StorageRow("storage", "not known", str(error), ok=False))
    return _StorageCheck(path, storage, curve, rows)


def _writable_space(path: Path) -> WritableSpace:
    folder = path if path.is_dir() else path.parent
    usage = shutil.disk_usage(folder)
    return WritableSpace(os.access(folder, os.W_OK), usage.free, usage.total)


def _print(examined: DoctorReport, storage: _StorageCheck | None, script: Path | None, explain: bool) -> None:
    sections = [("this machine", list(examined.machine))]
    if script is not None:
        sections.append((f"DataLoaders in {script}", list(examined.script)))
    if storage is not None:
        sections.append((f"storage under {redact_url(storage.path)}", list(as_checks(storage.rows))))
    if not explain:
        console.out.print(check_summary(sections))
        console.print_line("--explain says what each row means.")
        return
    for title, checks in sections:
        console.out.print(check_table(title, checks))
    if storage is not None and storage.curve is not None:
        console.out.print(curve_table(storage.curve))


def _document(examined: DoctorReport, storage: _StorageCheck | None) -> dict[str, Any]:
    parts = {
        "machine": examined.machine,
        "script": examined.script,
        "storage": storage.storage if storage else None,
        "curve": storage.curve if storage else None,
        "rows": storage.rows if storage else [],
        "in_flight": storage.curve.in_flight_needed() if storage and storage.curve else None,
    }
    document: dict[str, Any] = msgspec.to_builtins(parts, enc_hook=str)
    return document
