"""Programs of several ranks. Most of them are run once, and their results are used by many tests."""

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
    from ranks_shards import make_arrays

    return make_arrays(tmp_path_factory.mktemp("arrays"))


@pytest.fixture
def program(tmp_path):
    """Run Python with these arguments, in an environment without variables of a launcher."""

    def run(*arguments, **more):
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RAY_", "TORCH"))
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, env={**environment, **more}, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done

    return run


@pytest.fixture(scope="session")
def results_folder(tmp_path_factory):
    """Return a folder that is shared by all workers of xdist, since its results take many processes to make."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "ranks"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def results(shards, results_folder, tmp_path_factory):
    """Return the results of all jobs in ranks_jobs.py: results[job, ranks][rank]."""
    cache = {"PENSTOCK_CACHE": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, HERE / "ranks_jobs.py", shards, results_folder]
    with FileLock(results_folder / "lock"):
        if not (results_folder / "done").exists():
            done = subprocess.run(command, env={**os.environ, **cache}, capture_output=True, text=True, timeout=180)
            assert done.returncode == 0, done.stderr[-4000:]
            (results_folder / "done").touch()
    by_rank = defaultdict(dict)
    for file in results_folder.glob("*-*-*.json"):
        job, ranks, rank = file.stem.split("-")
        by_rank[job, int(ranks)][int(rank)] = json.loads(file.read_text())
    return {job: [ranks[rank] for rank in sorted(ranks)] for job, ranks in by_rank.items()}
