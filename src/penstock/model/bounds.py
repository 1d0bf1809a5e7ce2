"""Operational laws: what bounds the rate of batches, whatever happens in between (Denning and Buzen, 1978)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from penstock.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What one batch asks of each resource, on average, and how much there is; what is not known bounds nothing."""

    workers: int
    """0: the main process makes batches itself, so `service_s` belongs into `main_s` and is left out."""
    service_s: float = 0.0
    """Of one worker, for one batch, when nothing is in its way."""
    cores: float = inf
    cpu_s: float = 0.0
    """On a core, all processes together."""
    serial_s: float = 0.0
    """Under a lock that all workers share."""
    size_bytes: float = 0.0
    """Read from storage."""
    bandwidth_bytes_s: float = inf
    """Of the storage, at the number of reads in flight that there is."""
    requests: float = 0.0
    """To storage."""
    requests_s: float = inf
    """Requests that the storage can serve per second, at the number in flight that there is."""
    main_s: float = 0.0
    """Of the main process: taking a batch over, and the part of the step in which the host itself is held."""
    step_s: float = 0.0
    """Of the device, for one step; where host and device take turns, both belong into `main_s`."""


@dataclass(frozen=True, slots=True)
class Bound:
    """No more than `rate` batches a second, because of one resource."""

    name: str
    rate: float


def bounds(demands: Demands) -> tuple[Bound, ...]:
    """The bottleneck law, X ≤ capacity / demand for each resource: the one that binds first, the next after it."""
    pairs = (
        ("workers", float(demands.workers) if demands.workers else inf, demands.service_s),
        ("cpu", demands.cores, demands.cpu_s),
        ("serial", 1.0, demands.serial_s),
        ("bandwidth", demands.bandwidth_bytes_s, demands.size_bytes),
        ("requests", demands.requests_s, demands.requests),
        ("main", 1.0, demands.main_s),
        ("step", 1.0, demands.step_s),
    )
    for name, capacity, demand in pairs:
        if not (capacity > 0 and 0 <= demand < inf):
            raise SettingError(f"{name}: a capacity of {capacity} and a demand of {demand} make no bound")
    found = [Bound(name, capacity / demand) for name, capacity, demand in pairs if demand > 0 and capacity < inf]
    return tuple(sorted(found, key=lambda bound: bound.rate))


def utilisation(rate: float, demand_s: float, servers: float = 1.0) -> float:
    """Share of the time that a resource is busy: U = X·D / servers."""
    return rate * demand_s / servers


def in_system(rate: float, residence_s: float) -> float:
    """Batches under way at a time, by Little's law: N = X·R."""
    return rate * residence_s
