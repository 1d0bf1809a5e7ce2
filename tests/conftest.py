"""What every test gets."""

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

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts its background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OMP_NUM_THREADS", "1")  # beside others, threads of torch mostly wait for each other, busily

hypothesis.settings.register_profile("penstock", deadline=None)  # time is not what our tests are about
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.load_profile("steady" if "PENSTOCK_STEADY" in os.environ else "penstock")


def pytest_collection_finish():
    """What is there now stays to the end: collections need not walk it, nor forked workers copy it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Index files and probe results go to a folder of the test's own, never to the user's."""
    folder = tmp_path_factory.mktemp("penstock-cache")
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


@pytest.fixture
def make_loader():
    """Makes loaders that start quickly, and closes them."""
    made = []

    def make(shards, fields, batch_size=8, **settings):
        settings = {"executor": "thread", "num_workers": 2, "block_bytes": 4096, **settings}
        made.append(penstock.Loader(shards, fields, batch_size, **loader_settings(**settings)))
        return made[-1]

    def close():
        for each in made:
            each.close()

    make.close = close
    yield make
    close()
