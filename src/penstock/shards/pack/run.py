"""Runs a pack: claims the folder, executes the tasks that are not yet finished, and writes the manifest.

The folder holds, beside the shards, a work folder with a lock, the plan file and the report of every finished task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from penstock.core.write_file import replace_file
from penstock.errors import PenstockError, SettingError, StorageError
from penstock.shards.index import INDEX_SUFFIX, index_path_beside
from penstock.shards.pack.manifest import Manifest, PackedShard, make_manifest, write_manifest
from penstock.shards.pack.options import ArrayCodec
from penstock.shards.pack.plan import PackPlan
from penstock.shards.pack.write import WORK_FOLDER, finished_report, pack_shard, report_path, storage_errors
from penstock.shards.task_pool import run_tasks


class _PlanFile(msgspec.Struct, frozen=True):
    """The content of the plan file, which identifies the pack that a folder holds. Field names are keys of the JSON."""

    fingerprint: str
    """Fingerprint of the `PackPlan`."""
    arrays: ArrayCodec
    shards: list[str]
    """File names of all shards of the plan, finished or not."""
    class_files: list[str] = []
    """Names of the files with the names of classes."""


def pack(plan: PackPlan, folder: Path, *, workers: int | None = None, overwrite: bool = False) -> Iterator[PackedShard]:
    """Yield the report of each shard as it is finished, after those of an earlier run; then write the manifest."""
    with _exclusive_folder(folder):
        with storage_errors(folder):
            _claim_folder(plan, folder, overwrite)
        reports: dict[str, PackedShard] = {}
        missing: set[int] = set()
        for number, task in enumerate(plan.tasks()):
            report = finished_report(task, folder)
            if report is None:
                missing.add(number)
            else:
                reports[report.name] = report
                yield report
        tasks = (task for number, task in enumerate(plan.tasks()) if number in missing)
        for outcome in run_tasks(partial(pack_shard, folder=folder), tasks, workers):
            if isinstance(outcome.error, PenstockError):
                raise outcome.error.at(shard=str(folder / outcome.task.name))
            if outcome.error is not None or outcome.result is None:
                raise outcome.error or StorageError("task gave no result", shard=outcome.task.name, stage="pack")
            reports[outcome.result.name] = outcome.result
            yield outcome.result
        with storage_errors(folder):
            write_manifest(_manifest(plan, reports), folder)


def started_array_codec(folder: Path) -> ArrayCodec | None:
    """Return the codec of the pack that was begun in this folder; None if there is none.

    A pack that is continued must keep its codec, and a new measurement might select another one.
    """
    started = _read_plan(plan_path(folder))
    return None if started is None else started.arrays


def _manifest(plan: PackPlan, reports: dict[str, PackedShard]) -> Manifest:
    ordered = [reports[plan.name(number)] for number in range(len(plan.shards))]
    left_out = sum(len(source.index) - len(source.complete) for source in plan.sources)
    return make_manifest(ordered, left_out, asdict(plan.options))


@contextmanager
def _exclusive_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that only one pack writes to it; remove the temporary files of killed ones."""
    work = folder / WORK_FOLDER
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(work / "lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise StorageError(
            "another pack is writing here",
            shard=str(folder),
            stage="pack",
            advice="Wait for it to end, or choose another folder.",
        ) from None
    except OSError as error:
        raise StorageError(
            f"cannot write here: {error.strerror}",
            shard=str(folder),
            stage="pack",
            advice="Choose a folder that can be written.",
        ) from error
    try:
        _remove_temporaries(folder)
        yield
    finally:
        _remove_temporaries(folder)  # those of workers that died or were stopped
        lock.release()


def _remove_temporaries(folder: Path) -> None:
    """Remove temporary files. No other process writes to the folder while this one holds the lock."""
    patterns = (".*.tmp", f".*{INDEX_SUFFIX}.*", f"{WORK_FOLDER}/.*.tmp")
    for temporary in [path for pattern in patterns for path in folder.glob(pattern)]:
        with suppress(OSError):
            temporary.unlink()


def _claim_folder(plan: PackPlan, folder: Path, overwrite: bool) -> None:
    """Write the plan file; if the folder holds another pack, raise, or remove its shards if `overwrite` is set."""
    path = plan_path(folder)
    names = [plan.name(number) for number in range(len(plan.shards))]
    plan_file = _PlanFile(plan.fingerprint(), plan.options.arrays, names, list(plan.class_files))
    existing = _read_plan(path)
    if existing is not None and existing.fingerprint != plan_file.fingerprint:
        if not overwrite:
            raise SettingError(
                "this folder holds a pack made from other sources or with other options",
                shard=str(folder),
                stage="pack",
                advice="Choose an empty folder, or give --overwrite to replace it.",
            )
        for name in existing.shards:
            _remove_shard(folder, name)
        for name in existing.class_files:
            (folder / os.path.basename(name)).unlink(missing_ok=True)
    elif existing is None and any(folder.glob("*.tar")):
        raise SettingError(
            "this folder holds shards that are not from a pack",
            shard=str(folder),
            stage="pack",
            advice="Choose an empty folder.",
        )
    for name, classes in plan.class_files.items():
        _write_classes(folder / name, classes)
    replace_file(path, msgspec.json.encode(plan_file))


def _write_classes(path: Path, classes: Sequence[str]) -> None:
    """Write the names of classes, one per line; a file of the user with other content is left unchanged."""
    data = "".join(name + "\n" for name in classes).encode()
    if path.exists() and path.read_bytes() != data:
        raise SettingError(
            "exists already, and is not from a pack into this folder",
            shard=str(path),
            stage="pack",
            advice="Choose an empty folder.",
        )
    replace_file(path, data)


def plan_path(folder: Path) -> Path:
    """Return the path of the file that identifies the pack in a folder; it is written before the first task runs."""
    return folder / WORK_FOLDER / "plan.json"


def _read_plan(path: Path) -> _PlanFile | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_PlanFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise PenstockError(f"cannot read the plan file of an earlier pack: {error}", shard=str(path)) from error


def _remove_shard(folder: Path, name: str) -> None:
    """Remove a shard of an earlier pack with its report and its index, and the manifest."""
    name = os.path.basename(name)  # the name comes from a file: a path in it must not lead out of the folder
    for path in (
        report_path(folder, name),
        index_path_beside(folder / name),
        folder / name,
        folder / "manifest.json",
    ):
        path.unlink(missing_ok=True)
