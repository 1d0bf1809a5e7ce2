"""`penstock probe`: what each resource can do by itself, measured in seconds."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from penstock.bench.fields import SIZE, guess_fields, parse_fields
from penstock.cli import console
from penstock.cli.arguments import AsJson
from penstock.cli.doctor import there
from penstock.errors import PenstockError, SettingError
from penstock.plan.fingerprint import fingerprint
from penstock.probe.decode import DecodeInput, input_from_shard, synthetic_input
from penstock.probe.results import SkippedProbe, probes_document
from penstock.probe.run import NAMES, SECONDS, SECONDS_MAX, ProbeName, ProbeSubject, run_probes
from penstock.report.doctor import check_table
from penstock.report.probes import probe_rows
from penstock.storage.object_store.url import is_remote
from penstock.storage.paths import expand_shard_paths
from penstock.watcher.machine.facts import machine_facts

UNINDEXED = SkippedProbe(
    "a bucket is measured without looking into its shards: to index one may take longer than the rest"
)


def probe(
    what: Annotated[Literal["all", "storage", "decode", "ipc", "copy"], typer.Argument(help="Which of them.")] = "all",
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH", callback=there, help="A folder of shards, or one shard; or its URL (s3://bucket/folder/)."
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SUFFIX[:SIZE|:KEY]", help="A part to decode (may be repeated); else guessed."),
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Pixels a side of pictures without a size of their own.")] = SIZE,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch of the ipc and copy probes.")] = 32,
    seconds: Annotated[float, typer.Option(min=1, max=SECONDS_MAX, help="For all probes together, about.")] = SECONDS,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the storage anew, though it is known.")] = False,
    as_json: AsJson = False,
) -> None:
    """What can storage, cores, worker IPC and GPU link do, each by itself?

    \b
    storage   reads of the files under PATH, past the page cache; of a bucket,
              requests: how long one takes, what many at once bring
    decode    samples of its first shard, from memory, at 1, 2, 4 … workers
    ipc       constant batches of that shape through a torch DataLoader
    copy      the same batch to the GPU, from pinned and ordinary memory

    A training cannot be faster than the slowest of them, or than its own
    step (in Python: penstock.probe_step(step, batch)). Without PATH,
    made-up pictures are decoded and no storage is measured.

        penstock probe all sa1b/ --field image=.jpg:1024 --batch-size 24

    With --json, what is printed is what `penstock plan --probes` reads.

    Exit code: 0 measured, 2 wrong usage, 3 nothing could be measured.
    """
    if what == "storage" and path is None:
        raise SettingError("the storage of what?", advice="Give a PATH: penstock probe storage shards/")
    if field and path is None:
        raise SettingError("--field names parts of shards", advice="Give their PATH, too")
    names: tuple[ProbeName, ...] = NAMES if what == "all" else (what,)
    bucket = what == "storage" and path is not None and is_remote(path) and not field
    decode_input = UNINDEXED if bucket else _material(path, field, size)
    subject = ProbeSubject(decode_input=decode_input, path=path, batch_size=batch_size, refresh=refresh)
    with console.notices.status(f"measuring {', '.join(names)} …"):
        probes = run_probes(subject, names, seconds=seconds)
    if as_json:
        console.print_json(probes_document(probes, fingerprint(machine_facts())))
    else:
        console.out.print(check_table("measured, each by itself", probe_rows(probes)))
    raise typer.Exit(console.OK if probes.measured else console.FAILED)


def _material(path: str | None, field: list[str] | None, size: int) -> DecodeInput | SkippedProbe:
    """Samples of the first shard; made-up ones where there is none, which is said."""
    if path is None:
        return synthetic_input(size)
    try:
        shard = expand_shard_paths(path)[0]
    except SettingError as error:
        if field:
            raise
        _notice(f"{error}: made-up pictures are decoded instead")
        return synthetic_input(size)
    chosen = parse_fields(field, size) if field else None
    try:
        raced = chosen or guess_fields(shard, size).fields
        if not chosen:
            _notice(f"fields guessed: {' '.join(f'--field {each}' for each in raced)}")
        return input_from_shard(shard, {each.name: each.declared() for each in raced})
    except (PenstockError, OSError) as error:  # the other probes need no samples
        return SkippedProbe(str(error))


def _notice(text: str) -> None:
    console.notices.print(text, markup=False, highlight=False, soft_wrap=True)
