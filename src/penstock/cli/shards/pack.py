"""`penstock shards pack`: rewrites files, slow shards or other datasets as shards that are quick to read."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import msgspec
import typer

from penstock.cli import console
from penstock.cli.arguments import QUARANTINE, AsJson, NumWorkers, Quarantine, Require, parse_bytes
from penstock.cli.shards.ray_option import Ray, cluster_path, tasks_on
from penstock.core.cores import usable_cores
from penstock.core.write_file import write_result
from penstock.errors import SettingError, StorageError
from penstock.probe.storage import probe_storage
from penstock.report.shards import (
    PackResult,
    pack_plan_document,
    pack_plan_table,
    pack_source_lines,
    packed_document,
    packed_line,
    packed_table,
)
from penstock.shards.pack.codec_choice import choose_codec
from penstock.shards.pack.manifest import PackedShard
from penstock.shards.pack.options import ArrayCodec, PackOptions, Role
from penstock.shards.pack.plan import PackPlan, make_plan
from penstock.shards.pack.run import pack as run_pack
from penstock.shards.pack.run import plan_path, started_array_codec
from penstock.shards.pack.sources import PackSource, find_pack_sources
from penstock.storage.object_store.url import is_remote

RESUMED = "Finished shards are kept: the same command continues."


def pack(
    src: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A folder of loose files; shards; or files of Parquet, MDS, TFRecord, LMDB or HDF5: folder, glob, "
            "range (quoted). Shards may be URLs.",
        ),
    ],
    dst: Annotated[
        str, typer.Argument(metavar="DST", help="The folder for the packed shards; it is made if it does not exist.")
    ],
    arrays: Annotated[
        Literal["auto", "keep", "raw", "zstd"],
        typer.Option(help="NPZ and NPY parts: kept, or stored as raw NPY or zstd-compressed NPY; auto measures."),
    ] = "auto",
    image_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="PIXELS", help="Shrink JPEGs to this many pixels; smaller ones stay as they are."),
    ] = None,
    side: Annotated[Literal["long", "short"], typer.Option(help="The side that --image-size means.")] = "long",
    quality: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="JPEG quality of shrunk images.")] = 90,
    mask: Annotated[
        list[str] | None,
        typer.Option(metavar="SUFFIX", help="Masks: shrunk with their image, keeping class ids (may be repeated)."),
    ] = None,
    labels: Annotated[
        Literal["auto", "folder", "none"],
        typer.Option(
            help="folder: the top folder of a file is its class; auto: if it is a folder of images per class."
        ),
    ] = "auto",
    source_format: Annotated[
        Literal["auto", "files", "parquet", "mds", "tfrecord", "lmdb", "hdf5"],
        typer.Option(
            "--source-format",
            metavar="FORMAT",
            help="Of SRC: files, parquet, mds, tfrecord, lmdb or hdf5; auto goes by names and content.",
        ),
    ] = "auto",
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=ROLE]",
            help="Pack only this column of records (may be repeated); ROLE: image, label, text, array, bytes or json.",
        ),
    ] = None,
    casts: Annotated[
        list[str] | None,
        typer.Option("--cast", metavar="NAME=DTYPE", help="Store an array in another dtype (may be repeated)."),
    ] = None,
    shard_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Size of a full shard.")] = "256MiB",
    prefix: Annotated[str, typer.Option(metavar="NAME", help="The prefix of shard names.")] = "shard",
    require: Require = None,
    on_error: Annotated[
        Literal["raise", "skip"], typer.Option(help="A bad sample ends the run, or is left out and listed.")
    ] = "raise",
    quarantine: Quarantine = QUARANTINE,
    num_workers: NumWorkers = None,
    ray: Ray = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another pack in DST.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan and the sizes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite samples so that they are quick to read.

    The parts of a sample are stored side by side; images are shrunk to the training size, if requested; NPZ files are
    split into arrays stored raw (no decoding, more bytes) or zstd-compressed. Every part gets a CRC32, every shard an
    index, and the folder a manifest.json. The shards are ordinary tars: `tar tf` and webdataset read them.

        penstock shards pack sa1b/ packed/ --image-size 1024

    Files of records are read as samples: the columns become parts (.jpg, .cls, .json); see docs/packing.md.

        penstock shards pack 'cifar/train-*.parquet' packed/

    The same command continues a killed run: finished shards are kept.

    With --ray the work is done by a cluster, and the resulting bytes are the same; SRC and DST must be folders that
    all its nodes share under the same path. If a node dies, only its tasks are repeated.

        penstock shards pack /data/sa1b /data/packed --ray auto

    Exit code: 0 packed, 1 packed with samples left out (see the quarantine file), 2 wrong usage, 3 not finished.
    """
    options = PackOptions(
        arrays="raw" if arrays == "auto" else arrays,
        image_size=image_size,
        side=side,
        quality=quality,
        casts=_parse_casts(casts),
        shard_bytes=int(parse_bytes(shard_bytes, "--shard-bytes")),
        prefix=prefix,
        on_bad=on_error,
        require=tuple(require or ()),
        masks=tuple(mask or ()),
        labels=labels,
        format=source_format,
        columns=_parse_columns(column),
    )
    if is_remote(dst):
        raise SettingError(
            "packed shards are written to a folder", advice="Pack to a disk, then upload the folder whole"
        )
    src, folder = cluster_path(src, ray), Path(cluster_path(dst, ray))
    if not dry_run:
        _check_writable(folder)
    with tasks_on(None if dry_run else ray, num_workers) as shared_files:
        with console.busy("reading the sources …"):
            sources = list(find_pack_sources(src, options))
            reason = "as requested"
            if arrays == "auto":
                started = None if overwrite else started_array_codec(folder)
                codec, reason = _choose_codec(options, sources, folder, started)
                options = replace(options, arrays=codec)
            plan = make_plan(sources, options)
        if not as_json:
            for line in pack_source_lines(plan):
                console.print_line(line)
            console.print_line(f"arrays: {options.arrays} ({reason})")
        if dry_run:
            _print_plan(plan, reason, as_json)
            return
        shared_files += [str(plan_path(folder)), *map(_file_of, sources)]
        packed = _run(plan, folder, num_workers, overwrite)
    _write_quarantine(quarantine, sources, packed)
    left_out = [problem for source in sources for problem in source.problems]
    result = PackResult(plan, packed, left_out, reason)
    _print(result, as_json)
    raise typer.Exit(console.FOUND if result.left_out or result.skipped else console.OK)


def _file_of(source: PackSource) -> str:
    """Return a file by which a node shows that it can see the source."""
    return os.path.join(source.path, source.index.member_name(0)) if source.is_folder else source.path


def _choose_codec(
    options: PackOptions, sources: list[PackSource], dst: Path, started: ArrayCodec | None
) -> tuple[ArrayCodec, str]:
    """Return the codec that "auto" selects, and why; a pack that is continued keeps its codec."""
    if started is not None:
        return started, "as this pack began"
    existing = _existing_parent(dst)
    try:
        curve = probe_storage(existing)
    except StorageError:
        return options.arrays, "as the storage could not be measured; --arrays decides"
    bytes_per_s = curve.best_sequential().sequential_mb_per_s * 1e6
    choice = choose_codec(sources, options, bytes_per_s, usable_cores())
    return choice.codec, choice.reason


def _existing_parent(folder: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    while not folder.exists():
        folder = folder.parent
    return folder


def _check_writable(folder: Path) -> None:
    """Refuse a target that cannot be written or is full, before anything is read or measured."""
    existing = _existing_parent(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise SettingError(f"cannot write to {folder}", advice="Name a folder that may be written to")
    if not shutil.disk_usage(existing).free:
        raise StorageError(
            f"cannot write to {folder}: no space is left on its disk", advice="Free some, or name another"
        )


def _parse_casts(texts: list[str] | None) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in texts or ()]
    wrong = next((name for name, equals, _ in pairs if not equals or not name), None)
    if wrong is not None:
        raise SettingError(f"--cast {wrong!r} is not NAME=DTYPE", advice="For example --cast features=float16.")
    return tuple((name, dtype) for name, _, dtype in pairs)


def _parse_columns(texts: list[str] | None) -> tuple[tuple[str, Role | None], ...]:
    """Parse NAME or NAME=ROLE; what follows the last "=" is a role only if it is the name of one."""
    columns: list[tuple[str, Role | None]] = []
    for text in texts or ():
        name, _, role = text.rpartition("=")
        columns.append((name, cast(Role, role)) if name and role in get_args(Role) else (text, None))
    return tuple(columns)


def _run(plan: PackPlan, dst: Path, workers: int | None, overwrite: bool) -> list[PackedShard]:
    shards = []
    with console.progress("packing samples", plan.samples) as bar:
        for shard in run_pack(plan, dst, workers=workers, overwrite=overwrite):
            shards.append(shard)
            bar.advance(bar.task_ids[0], shard.samples + len(shard.skipped))
    return shards


def _write_quarantine(path: Path, sources: list[PackSource], packed: list[PackedShard]) -> None:
    lines: list[object] = [
        {"shard": source.path, "member": p.member, "offset": p.offset, "kind": p.kind, "reason": p.reason}
        for source in sources
        for p in source.problems
    ]
    lines += [line for shard in packed for line in shard.skipped]
    if lines:
        write_result(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _print_plan(plan: PackPlan, reason: str, as_json: bool) -> None:
    if as_json:
        console.print_json(pack_plan_document(plan, reason))
    else:
        console.out.print(pack_plan_table(plan))


def _print(result: PackResult, as_json: bool) -> None:
    if as_json:
        console.print_json(packed_document(result))
    else:
        console.out.print(packed_table(result))
        console.print_line(packed_line(result))
