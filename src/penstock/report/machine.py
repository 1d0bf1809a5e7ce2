"""What a run had to work with, and how it ended, as rows of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from penstock.core.format import format_bytes, format_duration
from penstock.recording.reader import Recording


def machine_rows(recording: Recording) -> Iterator[tuple[str, str]]:
    """Name and value; what is not known is left out."""
    run, machine = recording.run, recording.run.machine
    if run.began_unix_s > 0:
        yield "began", _when(run.began_unix_s)
    if recording.end is not None:
        yield (
            "ended",
            f"after {format_duration(recording.end.at_s)}, {recording.end.how}, exit code {recording.end.exit_code}",
        )
    else:
        yield "ended", "not recorded: killed, still running, or the file is cut short"
    if run.world_size > 1:
        yield "rank", f"{run.rank} of {run.world_size}"
    quota = "" if machine.quota_cores is None else f", quota {machine.quota_cores:g}"
    yield "cores", f"{machine.usable_cores} usable of {machine.cores}{quota}"
    if machine.memory_bytes:
        limit = machine.memory_limit_bytes
        yield "memory", format_bytes(machine.memory_bytes) + (f", limit {format_bytes(limit)}" if limit else "")
    if machine.gpus:
        counts = Counter((gpu.name, gpu.memory_bytes) for gpu in machine.gpus)
        yield "GPUs", ", ".join(_gpu(count, *gpu) for gpu, count in counts.items())
    software = {"python": machine.python, "torch": machine.torch, "penstock": run.penstock, "": machine.platform}
    yield "software", ", ".join(f"{name} {version}".strip() for name, version in software.items() if version) or "–"


def _when(unix_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{unix_s:g} s since 1970, which is no date"


def _gpu(count: int, name: str, memory_bytes: int) -> str:
    memory = f" ({format_bytes(memory_bytes)})" if memory_bytes else ""
    return f"{count} × {name}{memory}"
