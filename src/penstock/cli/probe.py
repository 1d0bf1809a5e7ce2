"""`penstock probe`: measures storage, decoding, worker IPC and GPU copies, each by itself, in seconds."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from penstock.bench.fields import SIZE, guess_fields, parse_fields
from penstock.cli import console
from penstock.cli.arguments import AsJson, ImageSize, Refresh, StoragePath
from penstock.errors import PenstockError, SettingError
from penstock.plan.fingerprint import fingerprint
from penstock.probe.decode import DecodeInput, input_from_shard, synthetic_input
from penstock.probe.results import SkippedProbe, probes_document
from penstock.probe.run import NAMES, SECONDS, SECONDS_MAX, ProbeName, ProbeSubject, run_probes
from penstock.report.doctor import check_table
from penstock.report.probe import probe_rows
from penstock.storage.object_store.url import is_remote
from penstock.storage.paths import expand_shard_paths
from penstock.watcher.machine.facts import machine_facts

NOT_INDEXED = SkippedProbe(
    "a bucket is measured without reading its shards: to index one may take longer than the measurement"
)

RESUMED = "What was measured is lost: a second call measures again."


def probe(
    what: Annotated[
        Literal["all", "storage", "decode", "ipc", "copy"],
        typer.Argument(metavar="WHAT", help="The resource to measure: all, storage, decode, ipc or copy."),
    ] = "all",
    path: StoragePath = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SUFFIX[:SIZE|:KEY]", help="A part to decode (may be repeated).  [default: guessed]"),
    ] = None,
    image_size: ImageSize = SIZE,
    batch_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="Samples per batch of the ipc and copy probes.")
    ] = 32,
    duration: Annotated[
        float,
        typer.Option(min=1, max=SECONDS_MAX, metavar="SECONDS", help="Approximate duration of all probes together."),
    ] = SECONDS,
    refresh: Refresh = False,
    as_json: AsJson = False,
) -> None:
    """Measure storage, cores, worker IPC and GPU link, each by itself.

    \b
    storage   reads under PATH, past the page cache;
              of a bucket, requests, alone and at once
    decode    samples of its first shard, from memory,
              by 1, 2, 4, … workers
    ipc       batches of that shape through a DataLoader
    copy      that batch to the GPU, pinned and not

    A training cannot be faster than the slowest of them, or than its own
    step (in Python: penstock.probe_step(step, batch)). Without PATH,
    synthetic images are decoded and no storage is measured.

        penstock probe all sa1b/ --field image=.jpg:1024 --batch-size 24

    `penstock plan --probes` reads what --json prints.

    Exit code: 0 measured, 2 wrong usage, 3 nothing could be measured.
    """
    if what == "storage" and path is None:
        raise SettingError("there is no storage to measure", advice="Give a PATH: penstock probe storage shards/")
    if field and path is None:
        raise SettingError("--field names parts of shards", advice="Give their PATH, too")
    names: tuple[ProbeName, ...] = NAMES if what == "all" else (what,)
    bucket = what == "storage" and path is not None and is_remote(path) and not field
    decode_input = NOT_INDEXED if bucket else _decode_input(path, field, image_size)
    subject = ProbeSubject(decode_input=decode_input, path=path, batch_size=batch_size, refresh=refresh)
    with console.timed(f"measuring {', '.join(names)}", duration):
        probes = run_probes(subject, names, seconds=duration)
    if as_json:
        console.print_json(probes_document(probes, fingerprint(machine_facts())))
    else:
        console.out.print(check_table("measured, each by itself", probe_rows(probes)))
    raise typer.Exit(console.OK if probes.measured else console.FAILED)


def _decode_input(path: str | None, field: list[str] | None, size: int) -> DecodeInput | SkippedProbe:
    """Return samples of the first shard, or synthetic ones with a notice if there is no shard."""
    if path is None:
        return synthetic_input(size)
    try:
        shard = expand_shard_paths(path)[0]
    except SettingError as error:
        if field:
            raise
        console.print_notice(f"{error}: synthetic images are decoded instead")
        return synthetic_input(size)
    parsed = parse_fields(field, size) if field else None
    try:
        fields = parsed or guess_fields(shard, size).fields
        if not parsed:
            console.print_notice(f"fields guessed: {' '.join(f'--field {each}' for each in fields)}")
        return input_from_shard(shard, {each.name: each.declared() for each in fields})
    except (PenstockError, OSError) as error:  # the other probes need no samples
        return SkippedProbe(str(error))
