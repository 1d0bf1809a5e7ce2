"""The GPUs as their driver describes them: memory, the link to the host, who else is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.core.format import format_bytes
from penstock.plan.doctor.check import Check, CheckStatus, not_known

LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""One PCIe lane, one direction, by generation; line coding taken off."""
AWAKE = 2
"""Performance states up to this one are a GPU at work; beyond it, links slow down to save power."""
TAKEN = 0.5
"""Less than this share of its memory free, and a training will hardly fit."""


def gpu_checks(handles: Sequence[tuple[Any, Any]]) -> Iterator[Check]:
    """Four rows for each GPU that a run may use; `handles` as `observe.machine.gpu_handles` gives them."""
    if not handles:
        yield _none()
    looks: dict[str, Callable[[str, Any, Any], Check]] = {
        "": _memory,
        " link": _link,
        " persistence": _persistence,
        " processes": _others,
    }
    for number, (nvml, handle) in enumerate(handles):
        for what, look in looks.items():
            name = f"GPU {number}{what}"
            try:
                yield look(name, nvml, handle)
            except Exception as error:  # NVML has an exception for everything that a board or a driver lacks
                yield not_known(name, f"The driver does not say: {error}.")


def _none() -> Check:
    if importlib.util.find_spec("pynvml") is None:
        return not_known("GPU", "nvidia-ml-py is not installed, so no driver was asked: pip install 'penstock[gpu]'.")
    return Check("GPU", "none", "No NVIDIA driver answers, or CUDA_VISIBLE_DEVICES hides all GPUs.", CheckStatus.OPEN)


def _memory(name: str, nvml: Any, handle: Any) -> Check:
    title = nvml.nvmlDeviceGetName(handle)
    title = title.decode(errors="replace") if isinstance(title, bytes) else str(title)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    value = f"{title}, {format_bytes(memory.free)} free of {format_bytes(memory.total)}"
    if memory.free < TAKEN * memory.total:
        return Check(name, value, "Less than half of its memory is free: somebody is there already.", CheckStatus.LOOK)
    return Check(name, value, "Model, activations and the batches that are ahead share this.")


def _link(name: str, nvml: Any, handle: Any) -> Check:
    """Width is negotiated once; the generation falls while the GPU sleeps, which is no fault."""
    generation = int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
    width = int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    most_generation = int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    most_width = int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    if not all((generation, width, most_generation, most_width)):
        return not_known(name, "The driver gives no link: the GPU may be virtual, or not on PCIe.")
    value = f"gen {generation} ×{width} of gen {most_generation} ×{most_width}"
    if width < most_width:
        meaning = f"Only {width} of {most_width} lanes carry data: look at the slot, the riser and the BIOS. "
        return Check(name, value, meaning + _speed(most_generation, width), CheckStatus.LOOK)
    if generation < most_generation and _awake(nvml, handle):
        meaning = "Awake, and the link is slower than both ends can do: look at the slot, the riser and the BIOS. "
        return Check(name, value, meaning + _speed(generation, width), CheckStatus.LOOK)
    asleep = "It sleeps, and the link with it; at work: " if generation < most_generation else ""
    return Check(name, value, asleep + _speed(most_generation, width))


def _speed(generation: int, width: int) -> str:
    lane = LANE_GB_PER_S.get(generation)
    if lane is None:
        return "`penstock probe copy` measures it."
    return f"At most {lane * width:.3g} GB/s from host to GPU; `penstock probe copy` measures it."


def _awake(nvml: Any, handle: Any) -> bool:
    try:
        return int(nvml.nvmlDeviceGetPerformanceState(handle)) <= AWAKE
    except Exception:  # as above; then it gets the benefit of the doubt
        return False


def _persistence(name: str, nvml: Any, handle: Any) -> Check:
    if nvml.nvmlDeviceGetPersistenceMode(handle):
        return Check(name, "on", "The driver stays loaded: a run starts at once.")
    meaning = "The driver unloads when nobody uses the GPU, and waking it takes seconds: nvidia-smi -pm 1 (as root)."
    return Check(name, "off", meaning, CheckStatus.LOOK)


def _others(name: str, nvml: Any, handle: Any) -> Check:
    """Looking does not use the GPU, so whoever is there is somebody else."""
    others = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    if not others:
        return Check(name, "none", "Nobody else computes on it.")
    held = sum(int(other.usedGpuMemory or 0) for other in others)
    pids = ", ".join(str(other.pid) for other in others[:4]) + (", …" if len(others) > 4 else "")
    memory = f" hold {format_bytes(held)}" if held else ""
    value = f"{len(others)}{memory} (pid {pids})"
    return Check(
        name, value, "They take turns with the training: its steps will be slower and uneven.", CheckStatus.LOOK
    )
