"""For which machine and which data a plan was made: elsewhere its numbers mean something else, and we say what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.core.plan import Plan
from penstock.errors import printable
from penstock.recording.format import LoaderLine, Machine
from penstock.watcher.machine.facts import machine_facts

SAME_MEMORY = 0.05
"""Kernels and drivers keep some for themselves: memory that differs by less is the same."""
NOTHING_KNOWN = "The plan does not say for which machine it was made"


def fingerprint(machine: Machine, loader: LoaderLine | None = None) -> dict[str, Any]:
    """What the numbers of a plan depend on; what is not known is left out."""
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


def differences(plan: Plan, here: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """In sentences; empty where the plan was made for this machine, or for one that cannot be told from it.

    `here` is a fingerprint of the machine that asks, and of its data where that is known.
    """
    here = fingerprint(machine_facts()) if here is None else here
    then, now = _part(plan.fingerprint, "machine"), _part(here, "machine")
    if not then:
        return (NOTHING_KNOWN,)
    return (*_machine(then, now), *_dataset(_part(plan.fingerprint, "dataset"), _part(here, "dataset")))


def _machine(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    cores = _pair(then, now, "usable_cores", int)
    if cores is not None and cores[0] != cores[1]:
        yield f"The plan counts on {cores[0]} usable cores, here are {cores[1]}: another number of workers may be best"
    memory = _pair(then, now, "memory_bytes", int)
    if memory is not None and abs(memory[0] - memory[1]) > SAME_MEMORY * max(memory):
        yield (
            f"The plan counts on {memory[0] / 1e9:.1f} GB of memory, here are {memory[1] / 1e9:.1f} GB: "
            "whether its batches fit was not checked for that"
        )
    gpus = _pair(then, now, "gpus", list)
    if gpus is not None and Counter(map(str, gpus[0])) != Counter(map(str, gpus[1])):
        yield f"The plan is for {_devices(gpus[0])}, here there is {_devices(gpus[1])}: a step takes another time"
    platform = _pair(then, now, "platform", str)
    if platform is not None and platform[0] != platform[1]:
        yield (
            f"The plan is for {printable(platform[0])}, this is {printable(platform[1])}: "
            "workers start in another way and cost something else"
        )


def _dataset(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    name = _pair(then, now, "name", str)
    if name is not None and name[0] != name[1]:
        yield f"The plan is for the dataset {printable(name[0])}, this is {printable(name[1])}"
    size = _pair(then, now, "size", int)
    if size is not None and size[0] != size[1]:
        yield f"The plan's dataset has {size[0]:,} samples, this one {size[1]:,}"


def _part(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A plan may have been edited by hand: what is no mapping is not known."""
    part = found.get(name)
    return part if isinstance(part, Mapping) else {}


def _pair(then: Mapping[str, Any], now: Mapping[str, Any], name: str, kind: type) -> tuple[Any, Any] | None:
    """Both values, where both are known and of their kind."""
    values = then.get(name), now.get(name)
    return values if all(type(value) is kind for value in values) else None


def _platform(text: str) -> str:
    """System and architecture: the kernel's release changes nothing."""
    words = text.split()
    return f"{words[0]} {words[-1]}" if len(words) > 1 else text


def _devices(names: list[Any]) -> str:
    counts = Counter(printable(str(name)) for name in names)
    return ", ".join(f"{count} × {name}" for name, count in counts.items()) or "no GPU"
