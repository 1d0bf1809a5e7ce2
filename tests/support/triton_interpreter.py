"""Runs Triton kernels in Triton's interpreter, in a new process, because Triton reads that setting when imported."""

import importlib.util
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch


def interpreted(file, tmp_path_factory):
    """Run the script `file`, which is given a path on its command line, and return the arrays that it saves there."""
    folder = os.environ.get("PENSTOCK_TRITON")
    if folder is None and importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed, and PENSTOCK_TRITON does not name its folder")
    path = tmp_path_factory.mktemp("interpreted") / "found.npz"
    root = str(Path(__file__).parents[2])  # so that the script can import `tests.support`
    search = os.pathsep.join(filter(None, (folder, root, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": search}
    subprocess.run([sys.executable, "-W", "error", file, path], env=environment, check=True)
    with np.load(path) as arrays:
        return dict(arrays)


def count_launches(module, name):
    """Record the launches of a kernel on the CPU: return a list to which each launch appends its grid."""
    torch.cuda.device = lambda device: nullcontext()
    grids, kernel = [], getattr(module, name)

    class RecordingKernel:
        def __getitem__(self, grid):
            grids.append(grid)
            return kernel[grid]

    setattr(module, name, RecordingKernel())
    return grids
