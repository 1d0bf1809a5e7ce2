"""Trials that nobody ran, for code that only weighs them."""

import pytest

from penstock.bench.trial import LoaderRun


@pytest.fixture
def make_trial():
    def make(contestant="penstock", workers=2, **changes):
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
        return LoaderRun(contestant=contestant, workers=workers, **{**facts, **changes})

    return make
