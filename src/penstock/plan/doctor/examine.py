"""All checks in their order; a value that one of them cannot find out becomes a row that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.plan.doctor.check import Check, unknown_check
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
from penstock.plan.doctor.script import ScriptContext, script_checks
from penstock.plan.worker_count import WorkerResources, machine_cores
from penstock.recording.format import Machine
from penstock.watcher.machine.facts import gpu_handles, machine_facts


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The rows about the machine, and about a script if there is one."""

    machine: tuple[Check, ...]
    script: tuple[Check, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no row needs action."""
        return all(check.ok for check in (*self.machine, *self.script))


def examine(script: Path | None = None) -> DoctorReport:
    """Check this machine, and the DataLoaders of a script if one is given."""
    machine = _machine_facts()
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
    return DoctorReport(rows, _rows("script", lambda: script_checks(script, _script_context(machine, memory))))


def _machine_facts() -> Machine:
    try:
        return machine_facts()
    except Exception:  # the other checks still run on a system that reports nothing
        return Machine()


def _script_context(machine: Machine, memory: MemoryFacts) -> ScriptContext:
    return ScriptContext(
        resources=WorkerResources(
            cores=machine_cores(machine),
            free_bytes=memory.free_bytes,
            shared_free_bytes=None if memory.shm is None else memory.shm.free_bytes,
        ),
        gpus=len(machine.gpus),
        start_method=read_start_method(),
    )


def _rows(name: str, checks: Callable[[], Iterable[Check]]) -> tuple[Check, ...]:
    try:
        return tuple(checks())
    except Exception as error:  # a check that fails must not prevent the others
        return (unknown_check(name, f"The check failed: {type(error).__name__}: {error}."),)
