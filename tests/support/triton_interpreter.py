"""Runs Triton kernels in the interpreter, in a process of its own, because Triton reads the setting when imported."""

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
    """Run the file as a script with a path, and return the arrays that it saves there."""
    folder = os.environ.get("PENSTOCK_TRITON")
    if folder is None and importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed, and no PENSTOCK_TRITON says where to find it")
    path = tmp_path_factory.mktemp("interpreted") / "found.npz"
    root = str(Path(__file__).parents[2])  # so that the script can import `tests.support`
    search = os.pathsep.join(filter(None, (folder, root, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": search}
    subprocess.run([sys.executable, "-W", "error", file, path], env=environment, check=True)
    with np.load(path) as arrays:
        return dict(arrays)


def count_launches(module, name):
    """Return a list of the grids with which this kernel will be launched on the CPU."""
    torch.cuda.device = lambda device: nullcontext()
    launches, launched = [], getattr(module, name)

    class Counted:
        def __getitem__(self, grid):
            launches.append(grid)
            return launched[grid]

    setattr(module, name, Counted())
    return launches
