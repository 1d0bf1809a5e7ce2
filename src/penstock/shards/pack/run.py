"""Runs a pack: selections the folder, has done what is missing, writes the manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from penstock.errors import PenstockError, SettingError, StorageError
from penstock.shards.index import INDEX_SUFFIX, index_path_beside
from penstock.shards.pack.manifest import Manifest, PackedShard, make_manifest, replace_file, write_manifest
from penstock.shards.pack.options import ArrayCodec
from penstock.shards.pack.plan import PackPlan
from penstock.shards.pack.write import WORK_FOLDER, finished_report, pack_shard, report_path, storage_errors
from penstock.shards.task_pool import run_tasks


class _PlanFile(msgspec.Struct, frozen=True):
    """Which pack a folder holds."""

    fingerprint: str
    arrays: ArrayCodec
    shards: list[str]


def pack(plan: PackPlan, folder: Path, *, workers: int | None = None, overwrite: bool = False) -> Iterator[PackedShard]:
    """Each shard's report as it is done, those of an earlier run first; the manifest is written at the end."""
    with _exclusive_folder(folder):
        with storage_errors(folder):
            _claim_folder(plan, folder, overwrite)
        reports: dict[str, PackedShard] = {}
        missing = []
        for number, task in enumerate(plan.tasks()):
            report = finished_report(task, folder)
            if report is None:
                missing.append(number)
            else:
                reports[report.name] = report
                yield report
        wanted = set(missing)
        tasks = (task for number, task in enumerate(plan.tasks()) if number in wanted)
        for done in run_tasks(partial(pack_shard, folder=folder), tasks, workers):
            if isinstance(done.error, PenstockError):
                raise done.error.at(shard=str(folder / done.task.name))
            if done.error is not None or done.result is None:
                raise done.error or StorageError("task gave no result", shard=done.task.name, stage="pack")
            reports[done.result.name] = done.result
            yield done.result
        with storage_errors(folder):
            write_manifest(_manifest(plan, reports), folder)


def started_array_codec(folder: Path) -> ArrayCodec | None:
    """The codec that a pack begun in this folder has settled on: measured again, it might come out otherwise."""
    begun = _read_plan(plan_path(folder))
    return None if begun is None else begun.arrays


def _manifest(plan: PackPlan, reports: dict[str, PackedShard]) -> Manifest:
    ordered = [reports[plan.name(number)] for number in range(len(plan.shards))]
    left_out = sum(len(source.index) - len(source.complete) for source in plan.sources)
    return make_manifest(ordered, left_out, asdict(plan.options))


@contextmanager
def _exclusive_folder(folder: Path) -> Iterator[None]:
    """One pack at a time in a folder; leftovers of a killed one are swept away."""
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
        _remove_temporaries(folder)  # of workers that died or were stopped
        lock.release()


def _remove_temporaries(folder: Path) -> None:
    """Remove temporary files: nobody else writes here while we hold the lock."""
    patterns = (".*.tmp", f".*{INDEX_SUFFIX}.*", f"{WORK_FOLDER}/.*.tmp")
    for leftover in [path for pattern in patterns for path in folder.glob(pattern)]:
        with suppress(OSError):
            leftover.unlink()


def _claim_folder(plan: PackPlan, folder: Path, overwrite: bool) -> None:
    """Note which pack this folder holds; another one's shards are refused, or removed when told so."""
    path = plan_path(folder)
    ours = _PlanFile(plan.fingerprint(), plan.options.arrays, [plan.name(number) for number in range(len(plan.shards))])
    theirs = _read_plan(path)
    if theirs is not None and theirs.fingerprint != ours.fingerprint:
        if not overwrite:
            raise SettingError(
                "this folder holds a pack made from other sources or with other options",
                shard=str(folder),
                stage="pack",
                advice="Choose an empty folder, or give --overwrite to replace it.",
            )
        for name in theirs.shards:
            _remove_shard(folder, name)
    elif theirs is None and any(folder.glob("*.tar")):
        raise SettingError(
            "this folder holds shards that are not from a pack",
            shard=str(folder),
            stage="pack",
            advice="Choose an empty folder.",
        )
    replace_file(path, msgspec.json.encode(ours))


def plan_path(folder: Path) -> Path:
    """Where it is noted which pack a folder holds; there as soon as tasks run."""
    return folder / WORK_FOLDER / "plan.json"


def _read_plan(path: Path) -> _PlanFile | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_PlanFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise PenstockError(f"cannot read the note of an earlier pack: {error}", shard=str(path)) from error


def _remove_shard(folder: Path, name: str) -> None:
    """Take away an old shard with all that belongs to it; the name comes from a file, so only its last part counts."""
    name = os.path.basename(name)
    for path in (
        report_path(folder, name),
        index_path_beside(folder / name),
        folder / name,
        folder / "manifest.json",
    ):
        path.unlink(missing_ok=True)
