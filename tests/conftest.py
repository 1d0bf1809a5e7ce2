"""Settings and fixtures of all tests."""

import gc
import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

import penstock

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests and their worker processes import tests.support

from tests.support.loader_helpers import loader_settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background jobs with Ctrl-C ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)

# When tests run in parallel, torch's threads mostly wait for each other, and they use CPU time while they wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("penstock", deadline=None)  # how long an example takes depends on the machine
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.load_profile("steady" if "PENSTOCK_STEADY" in os.environ else "penstock")


def pytest_collection_finish():
    """Exclude all present objects from garbage collection: most of them stay until the end.

    Collections then need not walk them, and forked workers need not copy the pages that they are in.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Use a new folder for the cached index files and probe results of each test, instead of the user's."""
    folder = tmp_path_factory.mktemp("penstock-cache")
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


@pytest.fixture
def make_loader():
    """Return a function that makes loaders that start quickly; they are closed after the test, or by its `close`."""
    loaders = []

    def make(shards, fields, batch_size=8, **settings):
        settings = {"executor": "thread", "num_workers": 2, "block_bytes": 4096, **settings}
        loaders.append(penstock.Loader(shards, fields, batch_size, **loader_settings(**settings)))
        return loaders[-1]

    def close():
        for loader in loaders:
            loader.close()

    make.close = close
    yield make
    close()
