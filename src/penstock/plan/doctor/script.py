"""A script's DataLoaders against this machine: what is known before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.core.format import format_bytes, format_count
from penstock.errors import SettingError
from penstock.plan.doctor.check import Check, CheckStatus
from penstock.plan.doctor.script_source import LoaderCall, SourceArgument, loader_calls
from penstock.plan.memory import torch_need

CROWDED = 4
"""Workers to a core from which on they mostly wait for each other."""
DEEP = 4
"""Batches ahead of each worker beyond which only very uneven samples gain."""
PREFETCH = 2
"""torch's own."""
PICTURE_BYTES = 3 * 224 * 224 * 4
"""A common sample: where not even this fits, hardly anything does."""
SEEN_WHEN_RUN = "Known only when it runs: `penstock run` sees it."


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The machine, as far as a DataLoader's settings depend on it."""

    cores: int
    gpus: int
    start_method: str
    free_bytes: int | None = None
    shm_free_bytes: int | None = None
    worker_bytes: int | None = None
    """What a worker takes for itself; None: measured on this process."""


def script_checks(path: Path, here: MachineFacts) -> Iterator[Check]:
    """Rows for each DataLoader; a script that cannot be read, or has none, is a row too."""
    try:
        calls = loader_calls(path)
    except SettingError as error:
        yield Check("script", "cannot be read", f"{error}", CheckStatus.BAD)
        return
    if not calls:
        meaning = "It is made elsewhere, or not by that name: `penstock run` sees every one, whoever makes it."
        yield Check("DataLoader", "none in the source", meaning, CheckStatus.OPEN)
    for call in calls:
        for check in _call_checks(call, here):
            yield Check(f"line {call.line} {check.name}", check.value, check.meaning, check.mark)


def _call_checks(call: LoaderCall, here: MachineFacts) -> Iterator[Check]:
    yield _workers(call, here)
    if call["prefetch_factor"].given:
        yield _prefetch(call)
    if call["pin_memory"].given or here.gpus:
        yield _pinned(call, here)
    if call["persistent_workers"].given or _worker_count(call):
        yield _persistent(call, here)
    if _worker_count(call):
        yield from _held(call, here)


def _workers(call: LoaderCall, here: MachineFacts) -> Check:
    said, cores = call["num_workers"], here.cores
    if not said.known:
        return _open("num_workers", said)
    count, value = said.value, _value(said)
    if count < 0:
        return Check("num_workers", value, "torch refuses a negative number.", CheckStatus.BAD)
    if count == 0:
        meaning = "The training loop makes every batch itself: right only for data that is in memory already."
        return Check("num_workers", value, meaning, CheckStatus.LOOK)
    if count > cores:
        share = f"{count} workers share {format_count(cores, 'core')}: "
        if count >= CROWDED * cores:
            meaning = share + "each decodes at a fraction of its speed, and all of them hold batches in memory."
            return Check("num_workers", value, meaning, CheckStatus.BAD)
        return Check(
            "num_workers", value, share + "more than cores pay only where they wait for storage.", CheckStatus.LOOK
        )
    return Check("num_workers", value, f"No more than {format_count(cores, 'core')}: each worker can have its own.")


def _prefetch(call: LoaderCall) -> Check:
    said, workers = call["prefetch_factor"], call["num_workers"]
    if not said.known:
        return _open("prefetch_factor", said)
    depth, value = said.value, _value(said)
    if depth is not None and workers.known and workers.value == 0:
        meaning = "torch refuses it without workers."
        return Check("prefetch_factor", value, meaning, CheckStatus.BAD)
    if depth is not None and depth < 1:
        return Check("prefetch_factor", value, "torch wants one batch ahead at least.", CheckStatus.BAD)
    if depth is not None and depth > DEEP:
        meaning = "Depth evens out uneven samples and does not raise the mean rate; it holds memory."
        return Check("prefetch_factor", value, meaning, CheckStatus.LOOK)
    return Check("prefetch_factor", value, "Batches ahead of each worker: enough to even out common differences.")


def _pinned(call: LoaderCall, here: MachineFacts) -> Check:
    said = call["pin_memory"]
    if not said.known:
        return _open("pin_memory", said)
    if said.value and not here.gpus:
        return Check("pin_memory", _value(said), "Without a GPU torch warns and does not pin.", CheckStatus.OPEN)
    if said.value:
        return Check("pin_memory", _value(said), "Copies to the GPU go at the link's speed, and can overlap the step.")
    if not here.gpus:
        return Check("pin_memory", _value(said), "There is no GPU here to pin for.")
    meaning = "Copies to the GPU go through pageable memory: slower, and never beside the step."
    return Check("pin_memory", _value(said), meaning, CheckStatus.LOOK)


def _persistent(call: LoaderCall, here: MachineFacts) -> Check:
    said, workers = call["persistent_workers"], call["num_workers"]
    if not said.known:
        return _open("persistent_workers", said)
    if said.value and workers.known and workers.value == 0:
        return Check("persistent_workers", _value(said), "torch refuses it without workers.", CheckStatus.BAD)
    if said.value:
        return Check("persistent_workers", _value(said), "Workers live from epoch to epoch.")
    if here.start_method == "fork":
        meaning = "Workers start anew each epoch: by fork that is soon done, but every epoch's first batch waits."
        return Check("persistent_workers", _value(said), meaning)
    meaning = f"Workers start anew each epoch: by {here.start_method}, each imports the script and torch again."
    return Check("persistent_workers", _value(said), meaning, CheckStatus.LOOK)


def _held(call: LoaderCall, here: MachineFacts) -> Iterator[Check]:
    """How large a sample may be, so that all batches that may be held at once have room: by the plan's memory model."""
    prefetch, batch = call["prefetch_factor"], call["batch_size"]
    if not prefetch.known or not batch.known or batch.value is None or batch.value < 1:
        return
    depth = PREFETCH if prefetch.value is None else prefetch.value
    rooms = _rooms(_worker_count(call), depth, here) if depth > 0 else []
    if not rooms:
        return
    batch_bytes, where = min(rooms)
    most = format_bytes(batch_bytes / batch.value)
    value = f"{_worker_count(call) * depth + 1} batches of {batch.value}"
    meaning = f"Held at once at most; they fit into {where} if a sample takes less than {most}"
    if batch_bytes / batch.value < PICTURE_BYTES:
        meaning += ": not even a 224×224 picture as float32 does"
        yield Check("batches held", value, f"{meaning}.", CheckStatus.LOOK)
    else:
        yield Check("batches held", value, f"{meaning}.")


def _rooms(workers: int, depth: int, here: MachineFacts) -> list[tuple[float, str]]:
    """Bytes there are for each batch, and where."""
    need = torch_need(workers=workers, prefetch=depth, batch_bytes=1, worker_bytes=here.worker_bytes)
    rooms = []
    if here.shm_free_bytes is not None:
        rooms.append((here.shm_free_bytes / need.shared_bytes, f"/dev/shm ({format_bytes(here.shm_free_bytes)})"))
    if here.free_bytes is not None:
        left = max(0, here.free_bytes - need.workers_bytes)
        taken = f"{format_bytes(here.free_bytes)}, less {format_bytes(need.workers_bytes)} for the workers themselves"
        rooms.append((left / need.batches_bytes, f"free memory ({taken})"))
    return rooms


def _worker_count(call: LoaderCall) -> int:
    """0 where it is not known."""
    said = call["num_workers"]
    return max(0, int(said.value)) if said.known else 0


def _open(name: str, said: SourceArgument) -> Check:
    return Check(name, said.text, SEEN_WHEN_RUN, CheckStatus.OPEN)


def _value(said: SourceArgument) -> str:
    """As written, or torch's default; a name is shown with what it stands for."""
    if not said.given:
        return f"{said.value} (default)"
    return said.text if said.text == repr(said.value) else f"{said.text} = {said.value}"
