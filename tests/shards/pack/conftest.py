"""Fixtures for the tests of packing: packing with and without worker processes, and reading the output."""

import io
import os
import subprocess
import tarfile
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources
from penstock.shards.pack.write import WORK_FOLDER, pack_shard
from penstock.testing import sample_parts, tar_bytes

Packed = namedtuple("Packed", "plan folder reports")
MIB = 1 << 20


@pytest.fixture
def plan_of():
    def make(src, **options):
        pack_options = PackOptions(**options)
        return make_plan(list(find_pack_sources(str(src), pack_options)), pack_options)

    return make


@pytest.fixture
def pack_in_process(plan_of):
    """A function that executes every task by a plain call in this process."""

    def run(src, folder, **options):
        plan = plan_of(src, **options)
        (folder / WORK_FOLDER).mkdir(parents=True)
        return Packed(plan, folder, [pack_shard(task, folder) for task in plan.tasks()])

    return run


@pytest.fixture
def pack_with_workers(plan_of):
    """A function that packs as the command does: with worker processes and a manifest."""

    def run(src, folder, *, workers=1, overwrite=False, **options):
        plan = plan_of(src, **options)
        return Packed(plan, folder, list(pack(plan, folder, workers=workers, overwrite=overwrite)))

    return run


@pytest.fixture
def contents():
    """A function that returns (name, data) of the members of all shards of a folder, as `tarfile` reads them."""

    def read(folder):
        members = []
        for path in sorted(Path(folder).glob("*.tar")):
            with tarfile.open(path) as tar:
                members += [(member.name, tar.extractfile(member).read()) for member in tar]
        return members

    return read


@pytest.fixture
def originals():
    """A function that returns the parts of each sample of a preset before packing, by key and suffix."""

    def make(preset, count, scale=0.1):
        return {preset.key(number): sample_parts(preset, number, scale=scale) for number in range(count)}

    return make


@pytest.fixture
def npz():
    def save(**arrays):
        out = io.BytesIO()
        np.savez_compressed(out, **arrays)
        return out.getvalue()

    return save


@pytest.fixture
def noise_shard():
    """A function that writes a plain shard whose samples are `size_bytes` of noise and a class number each."""

    def make(path, samples, size_bytes=100_000, first=0):
        rng = np.random.default_rng(first)
        members = []
        for number in range(first, first + samples):
            members += [(f"{number:05d}.bin", rng.bytes(size_bytes)), (f"{number:05d}.cls", str(number).encode())]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tar_bytes(members))
        return path

    return make


@pytest.fixture
def temporaries():
    """A function that lists the temporary files in a packed folder, which must not be left by any run."""

    def find(folder):
        folders = (Path(folder), Path(folder) / WORK_FOLDER)
        return sorted(
            path.name for each in folders if each.is_dir() for path in each.iterdir() if _is_temporary(path.name)
        )

    return find


def _is_temporary(name):
    return name.startswith(".") and name != WORK_FOLDER


@pytest.fixture
def mount_tmpfs(tmp_path):
    """A context manager that mounts a tmpfs with mount options, such as a size, and yields its path."""
    mount_points = []

    @contextmanager
    def mount(options):
        if not hasattr(os, "geteuid") or os.geteuid() != 0:
            pytest.skip("only root can mount a tmpfs")
        mount_point = tmp_path / f"tmpfs{len(mount_points)}"
        mount_point.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "none", mount_point]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {finished.stderr.strip()}")
        mount_points.append(mount_point)
        yield mount_point

    yield mount
    for mount_point in mount_points:
        subprocess.run(["umount", mount_point], check=True)
