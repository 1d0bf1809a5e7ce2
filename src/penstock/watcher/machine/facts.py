"""Facts about the machine at the start of a run: cores, memory, cgroup limits, GPUs and software versions."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
from contextlib import suppress
from functools import cache
from typing import Any

import psutil

from penstock.core.cgroups import memory_limit_bytes, quota_cores
from penstock.core.cores import usable_cores
from penstock.recording.format import Gpu, Machine


def machine_facts() -> Machine:
    """Return the facts about this machine; a fact that is not known is left out. Torch is not imported."""
    memory_bytes = psutil.virtual_memory().total
    limit_bytes = memory_limit_bytes()
    return Machine(
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        quota_cores=quota_cores(),
        memory_bytes=memory_bytes,
        memory_limit_bytes=limit_bytes if limit_bytes is not None and limit_bytes < memory_bytes else None,
        shared_bytes=_shared_bytes(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=_torch_version(),
        gpus=tuple(_describe_gpu(nvml, handle) for nvml, handle in gpu_handles()),
    )


def _shared_bytes() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:  # macOS, Windows
        return None


def _torch_version() -> str | None:
    loaded = getattr(sys.modules.get("torch"), "__version__", None)
    if loaded is not None:
        return str(loaded)
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("torch")
    return None


@cache
def gpu_handles() -> tuple[tuple[Any, Any], ...]:
    """Return NVML and its handle for each GPU that the run may use; none without the driver or nvidia-ml-py.

    NVML is initialised once per process: the first call takes a second if no other program keeps the driver loaded.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = range(nvml.nvmlDeviceGetCount()) if visible is None else visible.split(",")
        return tuple((nvml, _gpu_handle(nvml, str(name).strip())) for name in names)
    except Exception:  # there is no driver, no permission, or NVML does not know the name
        return ()


def _gpu_handle(nvml: Any, name: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def _describe_gpu(nvml: Any, handle: Any) -> Gpu:
    try:
        name = nvml.nvmlDeviceGetName(handle)
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except Exception:  # the driver may refuse a single query
        return Gpu(name="unknown")
    return Gpu(name=name.decode(errors="replace") if isinstance(name, bytes) else str(name), memory_bytes=memory_bytes)
