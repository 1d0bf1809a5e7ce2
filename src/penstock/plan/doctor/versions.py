"""Which versions are installed, read from their metadata: nothing is imported."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator

from penstock.plan.doctor.check import Check, CheckStatus
from penstock.recording.format import Machine

DISTRIBUTIONS = {"penstock": "penstock", "numpy": "numpy", "simplejpeg": "simplejpeg", "libdeflate": "deflate"}
"""By the name people know; the distribution that brings it."""
OPENCV = (
    "opencv-python-headless",
    "opencv-python",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)
"""All of these write the same files."""

Version = Callable[[str], str | None]


def installed(distribution: str) -> str | None:
    """None where it is not."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_checks(machine: Machine, version: Version = installed) -> Iterator[Check]:
    """Python, torch, and what decodes."""
    yield _python(machine)
    yield _torch(machine)
    yield _packages(version)


def _python(machine: Machine) -> Check:
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    if free_threaded:
        meaning = "Without a global lock: penstock.Loader decodes in threads."
    else:
        meaning = "One thread of Python at a time: decoding is done in worker processes."
    return Check("python", machine.python, f"{meaning} On {machine.platform}." if machine.platform else meaning)


def _torch(machine: Machine) -> Check:
    if machine.torch is None:
        meaning = 'Not installed: batches come as numpy arrays (device="numpy"), and there is no DataLoader to tune.'
        return Check("torch", "none", meaning, CheckStatus.OPEN)
    if machine.torch.endswith("+cpu") and machine.gpus:
        meaning = "Built without CUDA, though there is a GPU: training would run on the CPU. Install a CUDA build."
        return Check("torch", machine.torch, meaning, CheckStatus.BAD)
    return Check("torch", machine.torch, "Read from its metadata, not imported.")


def _packages(version: Version) -> Check:
    found = {name: version(distribution) for name, distribution in DISTRIBUTIONS.items()}
    opencvs = {name: known for name in OPENCV if (known := version(name)) is not None}
    found["opencv"] = next(iter(opencvs.values()), None)
    value = ", ".join(f"{name} {known or 'missing'}" for name, known in found.items())
    missing = [name for name, known in found.items() if known is None]
    if missing:
        meaning = f"{', '.join(missing)} cannot be found: install penstock again."
        return Check("packages", value, meaning, CheckStatus.BAD)
    if len(opencvs) > 1:
        meaning = f"{' and '.join(opencvs)} write the same files: remove all but opencv-python-headless."
        return Check("packages", value, meaning, CheckStatus.LOOK)
    return Check("packages", value, "What decodes, resizes and inflates in penstock's workers.")
