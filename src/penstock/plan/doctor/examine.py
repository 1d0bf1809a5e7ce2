"""All looks in their order. Whatever one of them cannot know becomes a row that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.plan.doctor.check import Check, not_known
from penstock.plan.doctor.gpu import gpu_checks
from penstock.plan.doctor.machine import (
    MemoryFacts,
    core_checks,
    limit_checks,
    memory_checks,
    read_memory,
    read_start_method,
    version_checks,
)
from penstock.plan.doctor.script import MachineFacts, script_checks
from penstock.recording.format import Machine
from penstock.watcher.machine.facts import gpu_handles, machine_facts


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The rows, by what was looked at."""

    machine: tuple[Check, ...]
    script: tuple[Check, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing to act on."""
        return all(check.ok for check in (*self.machine, *self.script))


def examine(script: Path | None = None) -> DoctorReport:
    """Look at this machine; with a script, at its DataLoaders too. Takes under a second, and imports no torch."""
    machine = _facts()
    memory = read_memory(machine)
    rows = (
        *_rows("cores", lambda: core_checks(machine)),
        *_rows("memory", lambda: memory_checks(memory)),
        *_rows("limits", limit_checks),
        *_rows("GPU", lambda: gpu_checks(gpu_handles())),
        *_rows("versions", lambda: version_checks(machine)),
    )
    if script is None:
        return DoctorReport(rows)
    return DoctorReport(rows, _rows("script", lambda: script_checks(script, _here(machine, memory))))


def _facts() -> Machine:
    try:
        return machine_facts()
    except Exception:  # a system that tells nothing is still looked at by the rest
        return Machine()


def _here(machine: Machine, memory: MemoryFacts) -> MachineFacts:
    return MachineFacts(
        cores=machine.usable_cores,
        gpus=len(machine.gpus),
        start_method=read_start_method(),
        free_bytes=memory.free_bytes,
        shm_free_bytes=None if memory.shm is None else memory.shm.free_bytes,
    )


def _rows(name: str, look: Callable[[], Iterable[Check]]) -> tuple[Check, ...]:
    try:
        return tuple(look())
    except Exception as error:  # one look that fails must not cost the others
        return (not_known(name, f"Looking failed: {type(error).__name__}: {error}."),)
