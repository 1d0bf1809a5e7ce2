"""A real run over a store that is slow in one way or another leaves a recording that says so."""

import time

import pytest

import penstock
from penstock.diagnose.verdict import diagnose
from penstock.plan.from_recording import plan_from_recording
from penstock.recording.format import Machine, RunLine, StepLine
from penstock.recording.reader import Recording
from penstock.testing import REID, make_shards
from penstock.watcher.loader_views import PenstockLoaderView

FIELDS = {"image": penstock.Image(".jpg", size=32)}
STEPS = 50
"""Of 150: at the end of an epoch readers have nothing to do."""
A_LOOK = 5
"""Steps; the watcher looks once a second."""


@pytest.fixture
def remote(bucket, tmp_path):
    paths = make_shards(tmp_path / "reid", REID, samples=300, shards=2, scale=0.2)
    for path in paths:
        bucket.put(f"reid/{path.name}", path.read_bytes())
    return [bucket.url(f"reid/{path.name}") for path in paths]


def watched(loader):
    """What the watcher writes of the first steps, with more looks than one a second."""
    side, steps, looks, begin = PenstockLoaderView(loader, 0, "train"), [], [], time.perf_counter()
    batches = iter(loader)
    for number in range(STEPS):
        asked_s = time.perf_counter() - begin
        next(batches)
        wait_s = time.perf_counter() - begin - asked_s
        steps.append(StepLine(loader=0, batch=number, at_s=asked_s, wait_s=wait_s, step_s=1e-4, samples=2))
        if number % A_LOOK == 0:
            looks += side.poll(time.perf_counter() - begin)
    return Recording(
        run=RunLine(machine=Machine(cores=2, usable_cores=2)),
        loaders={0: side.describe()},
        steps=tuple(steps),
        hops=tuple(looks),
    )


def test_a_store_that_answers_late_is_latency_and_more_in_flight_is_planned(make_loader, remote, proxy):
    proxy.slow_down(latency_s=0.05)
    loader = make_loader(remote, FIELDS, batch_size=2, num_readers=2, block_bytes=8192, device="numpy")
    recording = watched(loader)
    diagnosis = diagnose(recording)
    assert diagnosis.findings[0].rule == "latency_bound", diagnosis
    assert plan_from_recording(recording).loader["readers"] > 2


def test_a_store_that_is_full_is_bandwidth_and_a_cache_is_planned(make_loader, remote, proxy):
    proxy.slow_down(bytes_per_s=250_000)
    loader = make_loader(remote, FIELDS, batch_size=2, num_readers=6, block_bytes=8192, device="numpy")
    recording = watched(loader)
    diagnosis = diagnose(recording)
    assert diagnosis.findings[0].rule == "storage_bandwidth", diagnosis
    assert ("data", "cache") in {(change.scope, change.name) for change in plan_from_recording(recording).changes}


def test_a_recording_of_a_store_does_not_say_where_it_is(make_loader, remote, bucket, tmp_path):
    record = tmp_path / "run.jsonl"
    with penstock.watch(make_loader(remote, FIELDS), record=record) as watched:
        assert sum(1 for _ in watched) > 1
    text = record.read_text()
    assert '"hops"' in text
    assert bucket.name not in text
    assert "127.0.0.1" not in text
