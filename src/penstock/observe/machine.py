"""What the run has to work with: cores, memory, the container's limits, accelerators. Asked once, quickly."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import psutil

from penstock.core.cores import usable_cores
from penstock.recording.lines import Gpu, Machine

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def machine_facts() -> Machine:
    """What is not known is left out. Does not import torch."""
    quota = quota_cores()
    usable = usable_cores()
    memory_bytes = psutil.virtual_memory().total
    limit_bytes = memory_limit_bytes()
    return Machine(
        cores=os.cpu_count() or 1,
        usable_cores=usable if quota is None else max(1, min(usable, ceil(quota))),
        quota_cores=quota,
        memory_bytes=memory_bytes,
        memory_limit_bytes=limit_bytes if limit_bytes is not None and limit_bytes < memory_bytes else None,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=_torch_version(),
        gpus=tuple(_gpu(nvml, handle) for nvml, handle in gpu_handles()),
    )


def quota_cores(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Cores' worth of time that the tightest cgroup above this process allows."""
    quotas = []
    for folder in cgroup_folders("cpu", root, membership):
        with suppress(OSError, ValueError, ZeroDivisionError):
            limit, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(limit) / int(period))
        with suppress(OSError, ValueError, ZeroDivisionError):
            limit_us = int((folder / "cpu.cfs_quota_us").read_text())
            quotas.append(limit_us / int((folder / "cpu.cfs_period_us").read_text()))
    return min((quota for quota in quotas if quota > 0), default=None)


def memory_limit_bytes(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """The tightest cgroup's; an old cgroup without a limit gives a number larger than any machine."""
    limits = []
    for folder in cgroup_folders("memory", root, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def cgroup_folders(controller: str, root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """The cgroup this process is in, then those above it: version 1 of this controller, else version 2.

    In a container the folder named in /proc may be the host's, unseen here: then the mount's own root is ours.
    """
    mount, path = _cgroup(controller, root, membership)
    if mount is None:
        return
    folder = mount / path.lstrip("/")
    if ".." in folder.parts or not folder.is_dir():
        folder = mount
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def _cgroup(controller: str, root: Path, membership: Path) -> tuple[Path | None, str]:
    """Where the hierarchy is mounted, and our place in it."""
    unified = ""
    with suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") and (root / controller).is_dir():
                return root / controller, path
            unified = path if not controllers else unified
    for mount in (root, root / "unified"):
        if (mount / "cgroup.controllers").exists():
            return mount, unified
    return None, ""


def _torch_version() -> str | None:
    loaded = getattr(sys.modules.get("torch"), "__version__", None)
    if loaded is not None:
        return str(loaded)
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("torch")
    return None


@cache
def gpu_handles() -> tuple[tuple[Any, Any], ...]:
    """NVML and its handle for each accelerator the run may use; none without the driver or nvidia-ml-py.

    Opened once: the first call wakes the driver, which takes a second where nothing else keeps it awake.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = range(nvml.nvmlDeviceGetCount()) if visible is None else visible.split(",")
        return tuple((nvml, _handle(nvml, str(name).strip())) for name in names)
    except Exception:  # no driver, no permission, a name that NVML does not know: all the same to us
        return ()


def _handle(nvml: Any, name: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def _gpu(nvml: Any, handle: Any) -> Gpu:
    try:
        name = nvml.nvmlDeviceGetName(handle)
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except Exception:  # the driver may refuse a single question
        return Gpu(name="unknown")
    return Gpu(name=name.decode(errors="replace") if isinstance(name, bytes) else str(name), memory_bytes=memory_bytes)
