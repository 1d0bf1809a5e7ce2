"""Cores: those that may really be used, which is often not what `os.cpu_count()` says."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.plan.doctor.check import Check, CheckStatus
from penstock.recording.format import Machine


def core_checks(machine: Machine) -> Iterator[Check]:
    """Affinity and the container's quota, against what the machine has."""
    usable, cores, quota = machine.usable_cores, machine.cores, machine.quota_cores
    value = f"{usable} of {cores}"
    if quota is not None and quota < cores:
        meaning = (
            f"The container may use {quota:.3g} cores' worth of time and is stopped for the rest of each period; "
            f"os.cpu_count() still says {cores}, so a num_workers taken from it is too large."
        )
        yield Check("cores", f"{value} (quota {quota:.3g})", meaning, CheckStatus.LOOK)
    elif usable < cores:
        meaning = (
            f"The affinity mask leaves {usable}; os.cpu_count() still says {cores}, "
            "so a num_workers taken from it is too large."
        )
        yield Check("cores", value, meaning, CheckStatus.LOOK)
    elif usable == 1:
        meaning = "Decoding and the training loop share one core: workers can hide waiting, not computing."
        yield Check("cores", value, meaning, CheckStatus.LOOK)
    else:
        meaning = f"Decoding can use {usable} workers; more of them only pay where they wait for storage."
        yield Check("cores", value, meaning)
