"""Fingerprints: the machine and the dataset that a plan was made for, and how another machine differs from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.core.plan import Plan
from penstock.errors import printable
from penstock.recording.format import LoaderLine, Machine
from penstock.watcher.machine.facts import machine_facts

SAME_MEMORY = 0.05
"""Relative difference up to which memory counts as the same: kernels and drivers reserve some of it."""
NO_MACHINE = "The plan does not say for which machine it was made"


def fingerprint(machine: Machine, loader: LoaderLine | None = None) -> dict[str, Any]:
    """Return the facts that the numbers of a plan depend on; unknown facts are left out."""
    limit = machine.memory_limit_bytes
    facts = {
        "usable_cores": machine.usable_cores,
        "memory_bytes": machine.memory_bytes if limit is None else min(limit, machine.memory_bytes or limit),
        "gpus": [gpu.name for gpu in machine.gpus],
        "platform": _platform(machine.platform),
    }
    found: dict[str, Any] = {"machine": {name: value for name, value in facts.items() if value or name == "gpus"}}
    if loader is not None and (loader.dataset or loader.dataset_size is not None):
        dataset = {"name": loader.dataset or None, "size": loader.dataset_size}
        found["dataset"] = {name: value for name, value in dataset.items() if value is not None}
    return found


def differences(plan: Plan, current: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return a sentence for each difference between the fingerprint of a plan and the current one.

    `current` is the fingerprint of the machine in use, and of its dataset where that is known; it is taken from this
    machine if it is None. The result is empty if no difference is known.
    """
    current = fingerprint(machine_facts()) if current is None else current
    planned_machine, machine = _section(plan.fingerprint, "machine"), _section(current, "machine")
    if not planned_machine:
        return (NO_MACHINE,)
    planned_dataset, dataset = _section(plan.fingerprint, "dataset"), _section(current, "dataset")
    return (*_machine_differences(planned_machine, machine), *_dataset_differences(planned_dataset, dataset))


def _machine_differences(planned: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    cores = _pair(planned, current, "usable_cores", int)
    if cores is not None and cores[0] != cores[1]:
        yield f"The plan counts on {cores[0]} usable cores, here are {cores[1]}: another number of workers may be best"
    memory = _pair(planned, current, "memory_bytes", int)
    if memory is not None and abs(memory[0] - memory[1]) > SAME_MEMORY * max(memory):
        yield (
            f"The plan counts on {memory[0] / 1e9:.1f} GB of memory, here are {memory[1] / 1e9:.1f} GB: "
            "whether its batches fit was not checked for that"
        )
    gpus = _pair(planned, current, "gpus", list)
    if gpus is not None and Counter(map(str, gpus[0])) != Counter(map(str, gpus[1])):
        yield f"The plan is for {_gpu_list(gpus[0])}, here there is {_gpu_list(gpus[1])}: a step takes another time"
    platform = _pair(planned, current, "platform", str)
    if platform is not None and platform[0] != platform[1]:
        yield (
            f"The plan is for {printable(platform[0])}, this is {printable(platform[1])}: "
            "workers start by another method, with another cost"
        )


def _dataset_differences(planned: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    name = _pair(planned, current, "name", str)
    if name is not None and name[0] != name[1]:
        yield f"The plan is for the dataset {printable(name[0])}, this is {printable(name[1])}"
    size = _pair(planned, current, "size", int)
    if size is not None and size[0] != size[1]:
        yield f"The plan's dataset has {size[0]:,} samples, this one {size[1]:,}"


def _section(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a fingerprint; empty if it is no mapping, because a plan may be edited by hand."""
    section = found.get(name)
    return section if isinstance(section, Mapping) else {}


def _pair(planned: Mapping[str, Any], current: Mapping[str, Any], name: str, kind: type) -> tuple[Any, Any] | None:
    """Return both values if both are known and of the expected type."""
    values = planned.get(name), current.get(name)
    return values if all(type(value) is kind for value in values) else None


def _platform(text: str) -> str:
    """Return system and architecture without the kernel's release, which changes nothing."""
    words = text.split()
    return f"{words[0]} {words[-1]}" if len(words) > 1 else text


def _gpu_list(names: list[Any]) -> str:
    counts = Counter(printable(str(name)) for name in names)
    return ", ".join(f"{count} × {name}" for name, count in counts.items()) or "no GPU"
