"""`penstock shards pack`: from loose files or slow shards to quick ones."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from penstock.cli import console
from penstock.cli.arguments import QUARANTINE, AsJson, Quarantine, Require, Workers
from penstock.cli.shards.ray_option import Ray, seen_from_all, tasks_on
from penstock.core.cores import usable_cores
from penstock.core.format import format_bytes
from penstock.errors import SettingError
from penstock.probe.storage import probe_storage
from penstock.report.text import table
from penstock.shards.pack.codec_choice import choose_codec
from penstock.shards.pack.manifest import FieldFact, PackedShard
from penstock.shards.pack.options import ArrayCodec, PackOptions
from penstock.shards.pack.plan import PackPlan, make_plan
from penstock.shards.pack.run import pack as run_pack
from penstock.shards.pack.run import plan_path, started_array_codec
from penstock.shards.pack.sources import PackSource, find_pack_sources
from penstock.shards.validate import ShardProblem
from penstock.storage.object_store.url import is_remote

MB = 1 << 20


def pack(
    src: Annotated[str, typer.Argument(help="A folder of loose files, or shards: folder, glob, range (quoted), URL.")],
    dst: Annotated[str, typer.Argument(help="The folder for the packed shards; made if it is not there.")],
    arrays: Annotated[
        Literal["auto", "keep", "raw", "zstd"],
        typer.Option(help="NPZ and NPY parts: kept, or stored as raw NPY or zstd-compressed NPY; auto measures."),
    ] = "auto",
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Shrink JPEGs to this many pixels; smaller ones stay as they are.")
    ] = None,
    side: Annotated[Literal["long", "short"], typer.Option(help="Which side --image-size means.")] = "long",
    quality: Annotated[int, typer.Option(min=1, max=100, help="JPEG quality of shrunk pictures.")] = 90,
    cast: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DTYPE", help="Store an array in another dtype (may be repeated).")
    ] = None,
    shard_size: Annotated[int, typer.Option(min=1, metavar="MB", help="Size to close a shard at.")] = 256,
    prefix: Annotated[str, typer.Option(help="What shard names start with.")] = "shard",
    require: Require = None,
    on_bad: Annotated[
        Literal["raise", "skip"], typer.Option(help="A bad sample ends the run, or is left out and listed.")
    ] = "raise",
    quarantine: Quarantine = QUARANTINE,
    workers: Workers = None,
    ray: Ray = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another pack in DST.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan and the sizes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite samples so that they are quick to read.

    The parts of a sample come to lie side by side; pictures are shrunk to the training size, if asked; NPZ files are
    split into arrays stored raw (no decoding, more bytes) or zstd-compressed. Every part gets a CRC32, every shard an
    index, the whole a manifest.json. The shards are ordinary tars: `tar tf` and webdataset read them.

        penstock shards pack sa1b/ packed/ --image-size 1024

    A killed run goes on where it was when the same command is given again: finished shards are kept.

    With --ray the work is done by a cluster, with the same bytes as result; SRC and DST must be folders that all its
    nodes share under the same path. A node that dies costs its tasks only.

        penstock shards pack /data/sa1b /data/packed --ray auto

    Exit code: 0 packed, 1 packed with samples left out (see the quarantine file), 2 wrong usage, 3 not finished.
    """
    options = PackOptions(
        arrays="raw" if arrays == "auto" else arrays,
        image_size=image_size,
        side=side,
        quality=quality,
        casts=_casts(cast),
        shard_bytes=shard_size * MB,
        prefix=prefix,
        on_bad=on_bad,
        require=tuple(require or ()),
    )
    if is_remote(dst):
        raise SettingError(
            "packed shards are written to a folder", advice="Pack to a disk, then upload the folder whole"
        )
    src, folder = seen_from_all(src, ray), Path(seen_from_all(dst, ray))
    with tasks_on(None if dry_run else ray, workers) as shared:
        with console.notices.status("looking at the sources …"):
            sources = list(find_pack_sources(src, options))
            reason = "as you said"
            if arrays == "auto":
                codec, reason = _settle(options, sources, folder, None if overwrite else started_array_codec(folder))
                options = replace(options, arrays=codec)
            plan = make_plan(sources, options)
        if not as_json:
            console.out.print(f"arrays: {options.arrays} ({reason})", markup=False, highlight=False, soft_wrap=True)
        if dry_run:
            _show_plan(plan, reason, as_json)
            return
        shared += [str(plan_path(folder)), *map(_a_file_of, sources)]
        reports = _run(plan, folder, workers, overwrite)
    left_out = [problem for source in sources for problem in source.problems]
    _write_quarantine(quarantine, sources, reports)
    if as_json:
        _print_document(plan, reports, left_out, reason)
    else:
        _print_result(plan, reports, left_out)
    skipped = bool(left_out) or any(report.skipped for report in reports)
    raise typer.Exit(console.FOUND if skipped else console.OK)


def _a_file_of(source: PackSource) -> str:
    """By which a node shows that it sees the source."""
    return os.path.join(source.path, source.index.member_name(0)) if source.is_folder else source.path


def _settle(
    options: PackOptions, sources: list[PackSource], dst: Path, begun: ArrayCodec | None
) -> tuple[ArrayCodec, str]:
    """Which codec "auto" means here, and why. A pack that goes on keeps the codec it began with."""
    if begun is not None:
        return begun, "as this pack began"
    where = dst
    while not where.exists():
        where = where.parent
    bytes_per_s = probe_storage(where).best_sequential().sequential_mb_per_s * 1e6
    choice = choose_codec(sources, options, bytes_per_s, usable_cores())
    return choice.codec, choice.reason


def _casts(given: list[str] | None) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in given or ()]
    wrong = next((name for name, equals, _ in pairs if not equals or not name), None)
    if wrong is not None:
        raise SettingError(f"--cast {wrong!r} is not NAME=DTYPE", advice="For example --cast features=float16.")
    return tuple((name, dtype) for name, _, dtype in pairs)


def _run(plan: PackPlan, dst: Path, workers: int | None, overwrite: bool) -> list[PackedShard]:
    reports = []
    with console.progress("packing samples", plan.samples) as bar:
        for report in run_pack(plan, dst, workers=workers, overwrite=overwrite):
            reports.append(report)
            bar.advance(bar.task_ids[0], report.samples + len(report.skipped))
    return reports


def _write_quarantine(path: Path, sources: list[PackSource], reports: list[PackedShard]) -> None:
    lines: list[object] = [
        {"shard": source.path, "member": p.member, "offset": p.offset, "kind": p.kind, "reason": p.reason}
        for source in sources
        for p in source.problems
    ]
    lines += [line for report in reports for line in report.skipped]
    if lines:
        path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _show_plan(plan: PackPlan, reason: str, as_json: bool) -> None:
    estimate = int(plan.source_bytes * plan.size_ratio)
    facts = {
        "samples": plan.samples,
        "shards": len(plan.shards),
        "bytes_in": plan.source_bytes,
        "bytes_out_estimate": estimate,
        "arrays": plan.options.arrays,
        "reason": reason,
        "keys_prefixed": plan.prefix_keys,
    }
    if as_json:
        console.print_json(facts)
        return
    rows = [
        ("samples", f"{plan.samples:,}"),
        ("shards", f"{len(plan.shards):,}"),
        ("bytes now", format_bytes(plan.source_bytes)),
        ("bytes then", f"about {format_bytes(estimate)}"),
        ("keys", "with the source's name in front, since sources share keys" if plan.prefix_keys else "as they are"),
    ]
    console.out.print(table("plan (nothing written)", ("what", "how much"), rows))


def _print_document(plan: PackPlan, reports: list[PackedShard], left_out: list[ShardProblem], reason: str) -> None:
    console.print_json(
        {
            "samples": sum(report.samples for report in reports),
            "skipped": sum(len(report.skipped) for report in reports),
            "left_out_before_packing": [asdict(problem) for problem in left_out],
            "bytes_in": plan.source_bytes,
            "bytes_out": sum(report.size_bytes for report in reports),
            "arrays": plan.options.arrays,
            "reason": reason,
            "shards": [{"name": report.name, "samples": report.samples} for report in reports],
        }
    )


def _print_result(plan: PackPlan, reports: list[PackedShard], left_out: list[ShardProblem]) -> None:
    fields: dict[str, FieldFact] = {}
    for report in reports:
        for suffix, fact in report.fields.items():
            if suffix in fields:
                fields[suffix].merge(fact)
            else:
                fields[suffix] = msgspec.structs.replace(fact)
    rows = [
        (suffix, fact.codec, fact.dtype or "", "×".join(map(str, fact.shape or ())), format_bytes(fact.size_bytes))
        for suffix, fact in sorted(fields.items(), key=lambda item: -item[1].size_bytes)
    ]
    console.out.print(table("packed", ("part", "codec", "dtype", "shape", "bytes"), rows, right=("bytes",)))
    samples = sum(report.samples for report in reports)
    skipped = sum(len(report.skipped) for report in reports) + len(left_out)
    size = sum(report.size_bytes for report in reports)
    console.out.print(
        f"{samples:,} samples in {len(reports)} shards: {format_bytes(plan.source_bytes)} became {format_bytes(size)}"
        + (f"; {skipped} problems, see the quarantine file" if skipped else ""),
        highlight=False,
    )
