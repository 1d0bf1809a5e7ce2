"""Checks of a script's DataLoaders against this machine, before the first step.

The number of workers is judged by the limit of plan/worker_count.py, which `plan` and `tune` use too. Nothing has been
measured, so the workers are assumed to compute all the time: `penstock run` shows whether they wait instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.core.format import format_bytes
from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.errors import SettingError
from penstock.plan.doctor.check import Check, CheckStatus
from penstock.plan.doctor.script_source import LoaderCall, SourceArgument, loader_calls
from penstock.plan.memory import torch_need
from penstock.plan.worker_count import WorkerDemand, WorkerLimit, WorkerResources, worker_limit

DEEP_PREFETCH = 4
"""Prefetch factor above which only very uneven samples gain."""
COMMON_SAMPLE_BYTES = 3 * 224 * 224 * 4
"""A 224×224 image as float32: if not even this fits, hardly any sample does."""
KNOWN_AT_RUN_TIME = "Known only when it runs: `penstock run` records it."
COMPUTING = WorkerDemand(computing_share=1.0)
"""Workers that compute all the time, as the doctor assumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptContext:
    """The facts about the machine on which the settings of a DataLoader depend."""

    resources: WorkerResources
    gpus: int
    start_method: str
    worker_bytes: int | None = None
    """Private memory of a worker; None: measured on this process."""

    @property
    def worker_limit(self) -> WorkerLimit:
        """The limit on the number of workers, as far as it is known before a run."""
        return worker_limit(self.resources, COMPUTING)


def script_checks(path: Path, context: ScriptContext) -> Iterator[Check]:
    """Yield rows for each DataLoader; a script that cannot be read, or has none, is a row too."""
    try:
        calls = loader_calls(path)
    except SettingError as error:
        yield Check("script", "cannot be read", f"{error}", CheckStatus.BAD)
        return
    if not calls:
        meaning = "It is created elsewhere, or not by that name: `penstock run` finds each one, wherever it is created."
        yield Check("DataLoader", "none in the source", meaning, CheckStatus.UNKNOWN)
    for call in calls:
        for check in _call_checks(call, context):
            yield Check(f"line {call.line} {check.name}", check.value, check.meaning, check.mark)


def _call_checks(call: LoaderCall, context: ScriptContext) -> Iterator[Check]:
    yield _workers(call, context)
    if call["prefetch_factor"].given:
        yield _prefetch(call)
    if call["pin_memory"].given or context.gpus:
        yield _pin_memory(call, context)
    if call["persistent_workers"].given or _worker_count(call):
        yield _persistent_workers(call, context)
    if _worker_count(call):
        yield from _batch_memory(call, context)


def _workers(call: LoaderCall, context: ScriptContext) -> Check:
    argument = call["num_workers"]
    if not argument.known:
        return _unknown("num_workers", argument)
    count, value, cores = argument.value, _shown(argument), context.resources.cores or 1
    if count < 0:
        return Check("num_workers", value, "torch refuses a negative number.", CheckStatus.BAD)
    if count == 0:
        meaning = "The training loop makes every batch itself: right only for data that is in memory already."
        return Check("num_workers", value, meaning, CheckStatus.ATTENTION)
    limit = context.worker_limit.workers
    if count > limit:
        meaning = (
            f"{count} workers share {_cores(cores)}, and more than {limit} mostly wait for each other: each decodes "
            "at a fraction of its speed, and all of them hold batches in memory."
        )
        return Check("num_workers", value, meaning, CheckStatus.BAD)
    if count > cores:
        meaning = f"{count} workers share {_cores(cores)}: more than cores pay only where they wait for storage."
        return Check("num_workers", value, meaning, CheckStatus.ATTENTION)
    return Check("num_workers", value, f"No more than {_cores(cores)}: each worker can have its own.")


def _prefetch(call: LoaderCall) -> Check:
    argument, workers = call["prefetch_factor"], call["num_workers"]
    if not argument.known:
        return _unknown("prefetch_factor", argument)
    depth, value = argument.value, _shown(argument)
    if depth is not None and workers.known and workers.value == 0:
        meaning = "torch refuses it without workers."
        return Check("prefetch_factor", value, meaning, CheckStatus.BAD)
    if depth is not None and depth < 1:
        return Check("prefetch_factor", value, "torch requires at least one prefetched batch.", CheckStatus.BAD)
    if depth is not None and depth > DEEP_PREFETCH:
        meaning = "Depth evens out uneven samples and does not raise the mean rate; it holds memory."
        return Check("prefetch_factor", value, meaning, CheckStatus.ATTENTION)
    return Check("prefetch_factor", value, "Prefetched batches per worker: enough to even out common differences.")


def _pin_memory(call: LoaderCall, context: ScriptContext) -> Check:
    argument = call["pin_memory"]
    if not argument.known:
        return _unknown("pin_memory", argument)
    value = _shown(argument)
    if argument.value and not context.gpus:
        return Check("pin_memory", value, "Without a GPU torch warns and does not pin.", CheckStatus.UNKNOWN)
    if argument.value:
        return Check("pin_memory", value, "Copies to the GPU run at the link's speed, and can overlap the step.")
    if not context.gpus:
        return Check("pin_memory", value, "There is no GPU here to pin for.")
    meaning = "Copies to the GPU go through pageable memory: slower, and never beside the step."
    return Check("pin_memory", value, meaning, CheckStatus.ATTENTION)


def _persistent_workers(call: LoaderCall, context: ScriptContext) -> Check:
    argument, workers = call["persistent_workers"], call["num_workers"]
    if not argument.known:
        return _unknown("persistent_workers", argument)
    value, method = _shown(argument), context.start_method
    if argument.value and workers.known and workers.value == 0:
        return Check("persistent_workers", value, "torch refuses it without workers.", CheckStatus.BAD)
    if argument.value:
        return Check("persistent_workers", value, "Workers live from epoch to epoch.")
    if method == "fork":
        meaning = "Workers start anew each epoch: by fork that is soon done, but every epoch's first batch waits."
        return Check("persistent_workers", value, meaning)
    meaning = f"Workers start anew each epoch: by {method}, each imports the script and torch again."
    return Check("persistent_workers", value, meaning, CheckStatus.ATTENTION)


def _batch_memory(call: LoaderCall, context: ScriptContext) -> Iterator[Check]:
    """Report how large a sample may be for all outstanding batches to fit, by the memory model of a plan."""
    prefetch, batch = call["prefetch_factor"], call["batch_size"]
    if not prefetch.known or not batch.known or batch.value is None or batch.value < 1:
        return
    depth = TORCH_PREFETCH_FACTOR if prefetch.value is None else prefetch.value
    limits = _batch_limits(_worker_count(call), depth, context) if depth > 0 else []
    if not limits:
        return
    batch_bytes, where = min(limits)
    sample_bytes = batch_bytes / batch.value
    value = f"{_worker_count(call) * depth + 1} batches of {batch.value}"
    meaning = f"Held at once at most; they fit into {where} if a sample takes less than {format_bytes(sample_bytes)}"
    if sample_bytes < COMMON_SAMPLE_BYTES:
        meaning += ": not even a 224×224 image as float32 does"
        yield Check("batches held", value, f"{meaning}.", CheckStatus.ATTENTION)
    else:
        yield Check("batches held", value, f"{meaning}.")


def _batch_limits(workers: int, depth: int, context: ScriptContext) -> list[tuple[float, str]]:
    """Return the bytes available for each batch in shared memory and in memory, with a text that names the memory."""
    need = torch_need(workers=workers, prefetch=depth, batch_bytes=1, worker_bytes=context.worker_bytes)
    shared, free = context.resources.shared_free_bytes, context.resources.free_bytes
    limits = []
    if shared is not None:
        limits.append((shared / need.shared_bytes, f"/dev/shm ({format_bytes(shared)})"))
    if free is not None:
        left = max(0, free - need.workers_bytes)
        text = f"{format_bytes(free)}, less {format_bytes(need.workers_bytes)} for the workers themselves"
        limits.append((left / need.batches_bytes, f"free memory ({text})"))
    return limits


def _worker_count(call: LoaderCall) -> int:
    """Return the number of workers; 0 where it is not known."""
    argument = call["num_workers"]
    return max(0, int(argument.value)) if argument.known else 0


def _unknown(name: str, argument: SourceArgument) -> Check:
    return Check(name, argument.text, KNOWN_AT_RUN_TIME, CheckStatus.UNKNOWN)


def _shown(argument: SourceArgument) -> str:
    """Return the argument as written, or torch's default; a name is shown with its value."""
    if not argument.given:
        return f"{argument.value} (default)"
    return argument.text if argument.text == repr(argument.value) else f"{argument.text} = {argument.value}"


def _cores(count: float) -> str:
    return "1 core" if count == 1 else f"{count:g} cores"
