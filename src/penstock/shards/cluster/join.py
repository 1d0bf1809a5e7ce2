"""Joins a Ray cluster while tasks run on it, and leaves it afterwards. Ray is imported only then."""

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
"""A new cluster of this machine alone, which ends when the work is done."""
ADDRESS_TIMEOUT_S = 5.0
"""Seconds within which a cluster must accept a connection and answer."""
OBJECT_STORE_BYTES = 128 << 20
"""Shared memory of a local cluster's object store: tasks and their results are small, and containers have little
shared memory."""
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage statistics are sent
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # no messages about dead workers on stdout: they are raised as exceptions
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "1",  # each attempt on a server that does not answer takes 40 s; Ray's default is 20
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about GPUs, since no task uses one
}
"""Settings that Ray reads from the environment when it is imported; those of the user take precedence."""
_ADVICE = "Give HOST:PORT as `ray start --head` printed it, on a machine that has joined that cluster."
_FRAME_BYTES = 9
_SETTINGS = b"\x04"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _SETTINGS + bytes(5)
"""The first bytes of an HTTP/2 connection, which gRPC uses: a preface and an empty SETTINGS frame. The server answers
with a SETTINGS frame of its own."""


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A cluster that this process has joined, with the `ray` module, so that other modules need not import it."""

    ray: Any
    address: str
    """HOST:PORT of the head node."""

    @property
    def nodes(self) -> int:
        """Number of nodes that are alive now."""
        return sum(node["Alive"] for node in self.ray.nodes())

    @property
    def cpus(self) -> int:
        """Number of cores of the cluster now, and so of tasks that can run at a time."""
        return int(self.ray.cluster_resources().get("CPU", 0))


@contextmanager
def join_cluster(address: str = AUTO, workers: int | None = None) -> Iterator[RayCluster]:
    """Join the cluster within the context; a process that has joined it before is not disconnected at the end."""
    ray = _import_ray()
    joined_before = ray.is_initialized()
    if not joined_before:
        _start_ray(ray, address, workers)
    try:
        cluster = RayCluster(ray, ray.get_runtime_context().gcs_address)
        if joined_before and address not in (AUTO, cluster.address):
            raise SettingError(f"this process is in the Ray cluster at {cluster.address} and cannot join {address}")
        yield cluster
    finally:
        if not joined_before:
            ray.shutdown()


def _import_ray() -> Any:
    for name, value in _RAY_ENVIRONMENT.items():
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
    except Exception as error:  # Ray raises many types, with no base class in common
        raise SettingError(_join_failure(address, error), advice=_ADVICE) from error


def _check_reachable(address: str) -> None:
    """Raise unless a gRPC server answers at the address; Ray itself would retry for a long time before it fails."""
    if "://" in address:
        raise SettingError(
            f"{address!r} is the address of a Ray Client or dashboard, not of a cluster",
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
        raise SettingError(f"the server at {address} is not a Ray cluster", advice=_ADVICE)


def _join_failure(address: str, error: Exception) -> str:
    if address == AUTO:
        return "this machine is not part of a running Ray cluster"
    return f"cannot join the Ray cluster at {address}: {str(error).partition(chr(10))[0]}"


HEAD_CONNECT_TIMEOUT_S = 2.0
"""Seconds within which a running head node accepts a connection."""
HEAD_ABSENCE_LIMIT_S = 20.0
"""Seconds that the head node may be unreachable: a supervisor may restart it in that time."""
HEAD_POLL_INTERVAL_S = 0.5


class HeadNode:
    """The address of the head node, and the time since which it has been unreachable."""

    def __init__(self, address: str, clock: Clock = SYSTEM_CLOCK) -> None:
        host, _, port = address.rpartition(":")
        self._host_and_port = host.strip("[]"), int(port)
        self._address = address
        self._clock = clock
        self._unreachable_since_s: float | None = None

    def is_reachable(self) -> bool:
        """Return whether the head node accepts connections; raise if it has not for HEAD_ABSENCE_LIMIT_S."""
        try:
            socket.create_connection(self._host_and_port, HEAD_CONNECT_TIMEOUT_S).close()
        except OSError as error:
            now_s = self._clock.now()
            if self._unreachable_since_s is None:
                self._unreachable_since_s = now_s
            if now_s - self._unreachable_since_s >= HEAD_ABSENCE_LIMIT_S:
                raise PenstockError(
                    f"the head node of the Ray cluster, {self._address}, is gone",
                    stage="work",
                    advice="Run the same command again on a running cluster: what is finished is kept.",
                ) from error
            return False
        self._unreachable_since_s = None
        return True

    def wait_until_reachable(self) -> None:
        """Wait until the head node accepts connections; raise as `is_reachable` does."""
        while not self.is_reachable():
            self._clock.sleep(HEAD_POLL_INTERVAL_S)
