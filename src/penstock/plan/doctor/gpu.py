"""Checks of the GPUs as their driver reports them: memory, the link to the host, other processes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.core.format import format_bytes
from penstock.plan.doctor.check import Check, CheckStatus, unknown_check

LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""Bandwidth of one PCIe lane in one direction, by generation, without line coding."""
AWAKE = 2
"""Performance states up to this one belong to a GPU at work; in higher ones links slow down to save power."""
FREE_SHARE = 0.5
"""Share of the GPU's memory that must be free for a training to fit, in general."""


def gpu_checks(handles: Sequence[tuple[Any, Any]]) -> Iterator[Check]:
    """Yield four rows for each GPU that a run may use; `handles` are those of watcher.machine.facts.gpu_handles."""
    if not handles:
        yield _no_gpu()
    checks: dict[str, Callable[[str, Any, Any], Check]] = {
        "": _memory,
        " link": _link,
        " persistence": _persistence,
        " processes": _processes,
    }
    for number, (nvml, handle) in enumerate(handles):
        for suffix, check in checks.items():
            name = f"GPU {number}{suffix}"
            try:
                yield check(name, nvml, handle)
            except Exception as error:  # NVML raises for every feature that a board or a driver lacks
                yield unknown_check(name, f"The driver does not say: {error}.")


def _no_gpu() -> Check:
    if importlib.util.find_spec("pynvml") is None:
        return unknown_check(
            "GPU", "nvidia-ml-py is not installed, so no driver was asked: pip install 'penstock[gpu]'."
        )
    return Check(
        "GPU", "none", "No NVIDIA driver answers, or CUDA_VISIBLE_DEVICES hides all GPUs.", CheckStatus.UNKNOWN
    )


def _memory(name: str, nvml: Any, handle: Any) -> Check:
    model = nvml.nvmlDeviceGetName(handle)
    model = model.decode(errors="replace") if isinstance(model, bytes) else str(model)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    value = f"{model}, {format_bytes(memory.free)} free of {format_bytes(memory.total)}"
    if memory.free < FREE_SHARE * memory.total:
        return Check(
            name, value, "Less than half of its memory is free: another process uses it.", CheckStatus.ATTENTION
        )
    return Check(name, value, "Model, activations and the prefetched batches share this.")


def _link(name: str, nvml: Any, handle: Any) -> Check:
    """Judge the PCIe link. Its width is negotiated once; its generation drops while the GPU sleeps, which is normal."""
    generation = int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
    width = int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    max_generation = int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    max_width = int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    if not all((generation, width, max_generation, max_width)):
        return unknown_check(name, "The driver reports no link: the GPU may be virtual, or not on PCIe.")
    value = f"gen {generation} ×{width} of gen {max_generation} ×{max_width}"
    if width < max_width:
        meaning = f"Only {width} of {max_width} lanes carry data: check the slot, the riser and the BIOS. "
        return Check(name, value, meaning + _bandwidth(max_generation, width), CheckStatus.ATTENTION)
    if generation < max_generation and _is_awake(nvml, handle):
        meaning = "Awake, and the link is slower than both ends can do: check the slot, the riser and the BIOS. "
        return Check(name, value, meaning + _bandwidth(generation, width), CheckStatus.ATTENTION)
    asleep = "It sleeps, and the link with it; at work: " if generation < max_generation else ""
    return Check(name, value, asleep + _bandwidth(max_generation, width))


def _bandwidth(generation: int, width: int) -> str:
    lane = LANE_GB_PER_S.get(generation)
    if lane is None:
        return "`penstock probe copy` measures it."
    return f"At most {lane * width:.3g} GB/s from host to GPU; `penstock probe copy` measures it."


def _is_awake(nvml: Any, handle: Any) -> bool:
    try:
        return int(nvml.nvmlDeviceGetPerformanceState(handle)) <= AWAKE
    except Exception:  # the state is not reported; a slow link is then taken for a sleeping GPU
        return False


def _persistence(name: str, nvml: Any, handle: Any) -> Check:
    if nvml.nvmlDeviceGetPersistenceMode(handle):
        return Check(name, "on", "The driver stays loaded: a run starts at once.")
    meaning = "The driver unloads while the GPU is not used, and loading it takes seconds: nvidia-smi -pm 1 (as root)."
    return Check(name, "off", meaning, CheckStatus.ATTENTION)


def _processes(name: str, nvml: Any, handle: Any) -> Check:
    """List the processes on the GPU; this process does not use it, so they are all foreign."""
    others = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    if not others:
        return Check(name, "none", "No other process computes on it.")
    held = sum(int(other.usedGpuMemory or 0) for other in others)
    pids = ", ".join(str(other.pid) for other in others[:4]) + (", …" if len(others) > 4 else "")
    memory = f" hold {format_bytes(held)}" if held else ""
    value = f"{len(others)}{memory} (pid {pids})"
    meaning = "They share the GPU with the training: its steps will be slower and uneven."
    return Check(name, value, meaning, CheckStatus.ATTENTION)
