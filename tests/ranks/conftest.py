"""Programs of several ranks, run once for all that is asked of them."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from filelock import FileLock

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    from ranks_material import make_arrays

    return make_arrays(tmp_path_factory.mktemp("arrays"))


@pytest.fixture
def program(tmp_path):
    """Runs python with these arguments, without anything of a launcher's around it."""

    def run(*arguments, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RAY_", "TORCH"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            kept.pop(name, None)
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, env={**kept, **more}, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-4000:]
        return done

    return run


@pytest.fixture(scope="session")
def crew_folder(tmp_path_factory):
    """One for all of xdist's workers: what is in there takes many processes to make."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "crew"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def crew(shards, crew_folder, tmp_path_factory):
    """What the ranks of every job in ranks_crew.py had to say: found[job, ranks][rank]."""
    cache = {"PENSTOCK_CACHE": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, HERE / "ranks_crew.py", shards, crew_folder]
    with FileLock(crew_folder / "lock"):
        if not (crew_folder / "done").exists():
            done = subprocess.run(command, env={**os.environ, **cache}, capture_output=True, text=True, timeout=180)
            assert done.returncode == 0, done.stderr[-4000:]
            (crew_folder / "done").touch()
    found = defaultdict(dict)
    for file in crew_folder.glob("*-*-*.json"):
        job, ranks, rank = file.stem.split("-")
        found[job, int(ranks)][int(rank)] = json.loads(file.read_text())
    return {job: [of_rank[rank] for rank in sorted(of_rank)] for job, of_rank in found.items()}
