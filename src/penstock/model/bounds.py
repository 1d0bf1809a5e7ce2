"""Operational laws: upper bounds of the rate of batches, whatever happens in between (Denning and Buzen, 1978)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from penstock.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The mean demand of one batch on each resource, and the capacity of each; an unknown capacity bounds nothing."""

    workers: int
    """Number of workers; with 0 the main process makes the batches, so their seconds belong to `main_s` instead."""
    service_s: float = 0.0
    """Seconds that one worker takes for one batch if nothing slows it down."""
    cores: float = inf
    cpu_s: float = 0.0
    """Seconds on a core, of all processes together."""
    lock_s: float = 0.0
    """Seconds under a lock that all workers share."""
    size_bytes: float = 0.0
    """Bytes read from storage."""
    bandwidth_bytes_s: float = inf
    """Bytes per second that the storage delivers at the present number of reads in flight."""
    requests: float = 0.0
    """Requests to the storage."""
    requests_s: float = inf
    """Requests per second that the storage serves at the present number in flight."""
    main_s: float = 0.0
    """Seconds of the main process: receiving a batch, and the part of the step in which the host is busy."""
    step_s: float = 0.0
    """Seconds of the device for one step; where host and device take turns, both belong to `main_s`."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound of the rate by one resource."""

    name: str
    rate: float
    """Batches per second."""


def bounds(demands: Demands) -> tuple[Bound, ...]:
    """Return X ≤ capacity / demand for each resource (the bottleneck law), the tightest bound first."""
    pairs = (
        ("workers", float(demands.workers) if demands.workers else inf, demands.service_s),
        ("cpu", demands.cores, demands.cpu_s),
        ("serial", 1.0, demands.lock_s),
        ("bandwidth", demands.bandwidth_bytes_s, demands.size_bytes),
        ("requests", demands.requests_s, demands.requests),
        ("main", 1.0, demands.main_s),
        ("step", 1.0, demands.step_s),
    )
    for name, capacity, demand in pairs:
        if not (capacity > 0 and 0 <= demand < inf):
            raise SettingError(f"{name}: a capacity of {capacity} and a demand of {demand} give no bound")
    found = [Bound(name, capacity / demand) for name, capacity, demand in pairs if demand > 0 and capacity < inf]
    return tuple(sorted(found, key=lambda bound: bound.rate))


def utilisation(rate: float, demand_s: float, servers: float = 1.0) -> float:
    """Return the share of the time that a resource is busy: U = X·D / servers."""
    return rate * demand_s / servers


def batches_in_system(rate: float, residence_s: float) -> float:
    """Return the number of batches in the system at a time, by Little's law: N = X·R."""
    return rate * residence_s
