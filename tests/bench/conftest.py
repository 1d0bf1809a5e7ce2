"""Results of runs for tests of the code that compares them."""

import pytest

from penstock.bench.loader_run import LoaderRun


@pytest.fixture
def make_run():
    def make(loader="penstock", workers=2, **changes):
        facts = {
            "samples": 640,
            "batches": 40,
            "keys_digest": "0" * 16,
            "first_batch_s": 0.5,
            "seconds": 2.5,
            "rate": 312.0,
            "peak_memory_bytes": 300_000_000,
            "memory_kind": "pss",
            "cpu_s_per_sample": 0.002,
        }
        return LoaderRun(loader=loader, workers=workers, **{**facts, **changes})

    return make
