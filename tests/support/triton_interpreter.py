"""Kernels in Triton, run by its interpreter: in a process of its own, because Triton decides that when imported."""

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
    """The arrays that the file, run as a script with a path, has saved there."""
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
    """Where there is no card: the grids that this kernel is launched with from now on."""
    torch.cuda.device = lambda device: nullcontext()
    launches, launched = [], getattr(module, name)

    class Counted:
        def __getitem__(self, grid):
            launches.append(grid)
            return launched[grid]

    setattr(module, name, Counted())
    return launches
