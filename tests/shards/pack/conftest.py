"""What the tests of pack share: packing with and without processes, and looking into what came out."""

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
        chosen = PackOptions(**options)
        return make_plan(list(find_pack_sources(str(src), chosen)), chosen)

    return make


@pytest.fixture
def pack_here(plan_of):
    """Every task by a plain call, in this process: no executor at all."""

    def run(src, folder, **options):
        plan = plan_of(src, **options)
        (folder / WORK_FOLDER).mkdir(parents=True)
        return Packed(plan, folder, [pack_shard(task, folder) for task in plan.tasks()])

    return run


@pytest.fixture
def pack_all(plan_of):
    """As a user packs: worker processes, manifest and all."""

    def run(src, folder, *, workers=1, overwrite=False, **options):
        plan = plan_of(src, **options)
        return Packed(plan, folder, list(pack(plan, folder, workers=workers, overwrite=overwrite)))

    return run


@pytest.fixture
def contents():
    """Members of all shards of a folder, in order, as the standard library reads them."""

    def read(folder):
        found = []
        for path in sorted(Path(folder).glob("*.tar")):
            with tarfile.open(path) as tar:
                found += [(member.name, tar.extractfile(member).read()) for member in tar]
        return found

    return read


@pytest.fixture
def originals():
    """The samples of a preset by key, as they are before they are packed."""

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
    """A plain shard of incompressible samples: `size_bytes` of noise and a class number each."""

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
    """Files in a packed folder that a finished or failed run must not leave."""

    def find(folder):
        folders = (Path(folder), Path(folder) / WORK_FOLDER)
        return sorted(
            path.name for each in folders if each.is_dir() for path in each.iterdir() if _is_temporary(path.name)
        )

    return find


def _is_temporary(name):
    return name.startswith(".") and name != WORK_FOLDER


@pytest.fixture
def mounted(tmp_path):
    """A tmpfs of a given size, to be filled or made read-only."""
    places = []

    @contextmanager
    def mount(options):
        if not hasattr(os, "geteuid") or os.geteuid() != 0:
            pytest.skip("only root can mount a tmpfs")
        place = tmp_path / f"tmpfs{len(places)}"
        place.mkdir()
        tried = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {tried.stderr.strip()}")
        places.append(place)
        yield place

    yield mount
    for place in places:
        subprocess.run(["umount", place], check=True)
