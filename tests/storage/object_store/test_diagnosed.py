"""A recorded run over a slow store is diagnosed with the true cause."""

import time

import pytest

import penstock
from penstock.diagnose.verdict import diagnose, diagnose_run
from penstock.plan.from_diagnosis import plan_from_diagnosis
from penstock.recording.format import Machine, RunLine, StepLine
from penstock.recording.reader import Recording
from penstock.testing import REID, make_shards
from penstock.watcher.loader_views import PenstockLoaderView

FIELDS = {"image": penstock.Image(".jpg", size=32)}
STEPS = 50
"""Steps recorded, of 150 in the epoch: near its end the readers have nothing left to read."""
STEPS_PER_POLL = 5
"""Steps between two polls; the real watcher polls once a second."""


@pytest.fixture
def remote(bucket, tmp_path):
    paths = make_shards(tmp_path / "reid", REID, samples=300, shards=2, scale=0.2)
    for path in paths:
        bucket.put(f"reid/{path.name}", path.read_bytes())
    return [bucket.url(f"reid/{path.name}") for path in paths]


def record_steps(loader):
    """Return what the watcher would record of the first steps, with more polls than one per second."""
    view, steps, polls, begin = PenstockLoaderView(loader, 0, "train"), [], [], time.perf_counter()
    batches = iter(loader)
    for number in range(STEPS):
        start_s = time.perf_counter() - begin
        next(batches)
        wait_s = time.perf_counter() - begin - start_s
        steps.append(StepLine(loader=0, batch=number, at_s=start_s, wait_s=wait_s, step_s=1e-4, samples=2))
        if number % STEPS_PER_POLL == 0:
            polls += view.poll(time.perf_counter() - begin)
    return Recording(
        run=RunLine(machine=Machine(cores=2, usable_cores=2)),
        loaders={0: view.describe()},
        steps=tuple(steps),
        hops=tuple(polls),
    )


def test_a_slow_first_byte_is_diagnosed_as_latency_and_more_readers_are_planned(make_loader, remote, proxy):
    proxy.slow_down(latency_s=0.05)
    loader = make_loader(remote, FIELDS, batch_size=2, num_readers=2, block_bytes=8192, device="numpy")
    recording = record_steps(loader)
    diagnosis = diagnose(recording)
    assert diagnosis.findings[0].rule == "latency_bound", diagnosis
    assert plan_from_diagnosis(diagnose_run(recording)).loader["reading"]["num_readers"] > 2


def test_low_bandwidth_is_diagnosed_and_a_cache_is_planned(make_loader, remote, proxy):
    proxy.slow_down(bytes_per_s=250_000)
    loader = make_loader(remote, FIELDS, batch_size=2, num_readers=6, block_bytes=8192, device="numpy")
    recording = record_steps(loader)
    diagnosis = diagnose(recording)
    assert diagnosis.findings[0].rule == "storage_bandwidth", diagnosis
    assert ("data", "cache") in {
        (change.scope, change.name) for change in plan_from_diagnosis(diagnose_run(recording)).changes
    }


def test_a_recording_does_not_contain_the_address_of_the_store(make_loader, remote, bucket, tmp_path):
    record = tmp_path / "run.jsonl"
    with penstock.watch(make_loader(remote, FIELDS), record=record) as record_steps:
        assert sum(1 for _ in record_steps) > 1
    text = record.read_text()
    assert '"hops"' in text
    assert bucket.name not in text
    assert "127.0.0.1" not in text
