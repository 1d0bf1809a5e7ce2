"""Joins a Ray cluster for as long as the work selections, and leaves it again. Ray is imported when it is asked for."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.cores import usable_cores
from penstock.errors import PenstockError, SettingError

AUTO = "auto"
"""The cluster that RAY_ADDRESS names, or else the one that this machine is part of."""
LOCAL = "local"
"""A cluster of this machine alone, made for the occasion."""
ADDRESS_TIMEOUT_S = 5.0
OBJECT_STORE_BYTES = 128 << 20
"""Of shared memory in a cluster of our own: tasks and their answers are small, and containers have little of it."""
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to anybody
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what it has to say about dead workers, on stdout, comes to us as exceptions
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "1",  # a server that does not answer is asked for 40 s; Ray would ask 20 times
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no tip about GPUs that nobody asked for
}
_ADVICE = "Give HOST:PORT as `ray start --head` printed it, on a machine that has joined that cluster."
_FRAME_BYTES = 9
_SETTINGS = b"\x04"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _SETTINGS + bytes(5)
"""How an HTTP/2 connection, and so gRPC, begins: a preface and a frame of settings, answered by one of theirs."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that we are part of, and Ray itself, which nobody else needs to import."""

    ray: Any
    address: str

    @property
    def nodes(self) -> int:
        """How many are alive now."""
        return sum(node["Alive"] for node in self.ray.nodes())

    @property
    def cpus(self) -> int:
        """How many tasks it can run at a time now."""
        return int(self.ray.cluster_resources().get("CPU", 0))


@contextmanager
def join_cluster(address: str = AUTO, workers: int | None = None) -> Iterator[Cluster]:
    """Be part of the cluster within. A process that is in it already stays in it."""
    ray = _import_ray()
    already = ray.is_initialized()
    if not already:
        _start_ray(ray, address, workers)
    try:
        cluster = Cluster(ray, ray.get_runtime_context().gcs_address)
        if already and address not in (AUTO, cluster.address):
            raise SettingError(f"this process is in the Ray cluster at {cluster.address} and cannot join {address}")
        yield cluster
    finally:
        if not already:
            ray.shutdown()


def _import_ray() -> Any:
    for name, value in _RAY_ENVIRONMENT.items():  # read when it is imported
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise SettingError("Ray is not installed", advice="pip install 'penstock[ray]'") from error


def _start_ray(ray: Any, address: str, workers: int | None) -> None:
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS") or AUTO
    settings: dict[str, object] = {}
    if address == LOCAL:
        settings = {"num_cpus": workers or usable_cores(), "object_store_memory": OBJECT_STORE_BYTES}
    elif address != AUTO:
        _check_reachable(address)
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False, **settings)
    except Exception as error:  # Ray has a kind for every reason
        raise SettingError(_join_failure(address, error), advice=_ADVICE) from error


def _check_reachable(address: str) -> None:
    """Somebody must answer there, and speak Ray's language: Ray itself would try for a long time."""
    if "://" in address:
        raise SettingError(
            f"{address!r} is not the address of a cluster but of a way into it",
            advice="Run the command on a node of the cluster, with --ray auto, or have `ray job submit` run it there.",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise SettingError(f"{address!r} is not the address of a Ray cluster", advice=f"{_ADVICE} Or auto, or local.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ADDRESS_TIMEOUT_S) as connection:
            connection.sendall(_HTTP2_PREFACE)
            greeting = connection.recv(_FRAME_BYTES, socket.MSG_WAITALL)
    except (OSError, OverflowError) as error:
        raise SettingError(f"nothing answers at {address}: {error}", advice=_ADVICE) from error
    if greeting[3:4] != _SETTINGS and os.environ.get("RAY_USE_TLS") != "1":
        raise SettingError(f"what answers at {address} is no Ray cluster", advice=_ADVICE)


def _join_failure(address: str, error: Exception) -> str:
    if address == AUTO:
        return "this machine is not part of a running Ray cluster"
    return f"cannot join the Ray cluster at {address}: {str(error).partition(chr(10))[0]}"


HEAD_CONNECT_TIMEOUT_S = 2.0
"""Within which a head that lives opens its door."""
HEAD_ABSENCE_LIMIT_S = 20.0
"""How long it may be away: where somebody watches over it, a head comes back."""
HEAD_POLL_INTERVAL_S = 0.5


class HeadNode:
    """The door of the head node, and since when nobody has opened it."""

    def __init__(self, address: str, clock: Clock = SYSTEM_CLOCK) -> None:
        host, _, port = address.rpartition(":")
        self._door = host.strip("[]"), int(port)
        self._address = address
        self._clock = clock
        self._away_s: float | None = None

    def is_reachable(self) -> bool:
        """Whether it can be asked something now; an error if it has been away for too long."""
        try:
            socket.create_connection(self._door, HEAD_CONNECT_TIMEOUT_S).close()
        except OSError as error:
            now_s = self._clock.now()
            self._away_s = now_s if self._away_s is None else self._away_s
            if now_s - self._away_s >= HEAD_ABSENCE_LIMIT_S:
                raise PenstockError(
                    f"the head node of the Ray cluster, {self._address}, is gone",
                    stage="work",
                    advice="Run the same command again on a cluster that lives: what is finished is kept.",
                ) from error
            return False
        self._away_s = None
        return True

    def wait_until_reachable(self) -> None:
        """Until it answers; an error if it does not."""
        while not self.is_reachable():
            self._clock.sleep(HEAD_POLL_INTERVAL_S)
