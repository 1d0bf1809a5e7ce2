"""What one rank asks for, from recordings and probes whose numbers are known."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.fleet_needs import probed
from tests.support.made_recordings import SAMPLES, Made

from penstock.diagnose.verdict import diagnose_run
from penstock.errors import RecordingError, SettingError
from penstock.options import BLOCK_BYTES
from penstock.plan.fleet.rank_need import need_from_diagnosis, need_from_probes
from penstock.plan.from_probes import NO_STEP, StepFacts
from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.recording.format import HopsLine, LoaderLine, RunLine

READS = {"read_bytes": 8_000_000, "reads": 16}


def need_from_recording(recording):
    return need_from_diagnosis(diagnose_run(recording))


def test_a_recording_of_torchs_loader_says_what_its_batches_took_and_read():
    found = need_from_recording(Made(fetch=READS, receive_s=0.0, step_cpu=0.0).recording())
    assert found.samples_per_batch == SAMPLES
    assert (found.batch_bytes, found.batch_requests) == (8_000_000, 16)
    assert found.cpu_s.mean() == pytest.approx(0.01, rel=0.05)
    assert found.step_s.mean() == pytest.approx(0.02, rel=0.05)
    assert (found.workers, found.prefetch, found.cores) == (4, 2, 8)
    assert found.dataset_bytes == pytest.approx(100_000 * 8_000_000 / SAMPLES)
    assert any("counts as a request" in note for note in found.notes)


def test_waiting_for_bytes_is_kept_apart_from_computing():
    found = need_from_recording(Made(latency_s=0.03, fetch=READS).recording())
    assert found.waited_s.mean() == pytest.approx(0.03, rel=0.1)


def test_steps_of_several_ranks_hold_their_waiting_and_that_is_said():
    recording = Made(fetch=READS).recording()
    found = need_from_recording(replace(recording, run=RunLine(machine=recording.run.machine, world_size=4)))
    assert any("those of 4 ranks" in note for note in found.notes)


def test_without_a_count_of_bytes_nothing_is_made_up():
    found = need_from_recording(Made().recording())
    assert (found.batch_bytes, found.batch_requests, found.dataset_bytes) == (None, None, None)
    with pytest.raises(SettingError, match="not counted"):
        found.with_dataset(1e12)


def test_workers_that_nobody_saw_leave_the_steps():
    recording = replace(Made().recording(), fetches=())
    found = need_from_recording(recording)
    assert not found.cpu_s.any()
    assert found.step_s.mean() == pytest.approx(0.02, rel=0.05)
    assert any("left out" in note for note in found.notes)


def test_a_recording_of_our_loader_is_read_by_its_hops():
    recording = Made(count=200).recording()
    loader = LoaderLine(loader=0, type="penstock", batches=200)
    end_s = recording.steps[-1].at_s + 1
    hops = (
        HopsLine(loader=0, at_s=0.0, hops={"decode": (0.0, 0.0, 0.0)}, workers=1, lookahead=2),
        HopsLine(
            loader=0, at_s=end_s, hops={"decode": (19.9, 0, 0)}, workers=3, lookahead=9, bytes_read=199 * 4_000_000
        ),
    )
    found = need_from_recording(replace(recording, loaders={0: loader}, fetches=(), hops=hops))
    assert found.cpu_s.mean() == pytest.approx(0.1)
    assert found.batch_bytes == pytest.approx(4_000_000)
    assert found.batch_requests == pytest.approx(4_000_000 / BLOCK_BYTES)
    assert (found.workers, found.prefetch) == (3, 3)
    assert found.samples == 200 * SAMPLES


def test_few_steps_are_no_run():
    with pytest.raises(RecordingError, match="too few"):
        need_from_recording(Made(count=5).recording())


def test_probes_with_a_step_get_as_many_workers_as_keep_up():
    asked = need_from_probes(probed(), StepFacts(0.04))
    assert asked.source == "probes"
    assert (asked.samples_per_batch, asked.batch_bytes, asked.batch_requests) == (8, 800_000, 8)
    assert asked.cpu_s.mean() == pytest.approx(0.0805)
    assert asked.workers == 4
    assert asked.cores == 8
    assert asked.samples is None
    assert asked.with_dataset(1e9).samples == pytest.approx(1e4)


def test_probes_of_a_storage_say_what_a_batch_waits_there():
    curve = StorageCurve(
        (CurvePoint(1, 100.0, 400.0),), 100_000, OpenStat(10.0, 20.0, 5), True, "direct", 1 << 20, 2.0, 0.0
    )
    assert need_from_probes(probed(curve=curve), StepFacts(0.04)).waited_s.mean() == pytest.approx(8 / 400)


def test_probes_without_a_step_ask_for_anything():
    with pytest.raises(SettingError, match="--step-ms"):
        need_from_probes(probed(), NO_STEP)


def test_steps_keep_their_variation():
    steps = np.tile([0.01, 0.03], 100)
    found = need_from_recording(Made(step_s=0.02, fetch=READS).recording())
    made = Made(fetch=READS).recording()
    uneven = replace(made, steps=tuple(_with_step(step, s) for step, s in zip(made.steps, steps, strict=True)))
    assert need_from_recording(uneven).step_s.std() > 10 * found.step_s.std()


def _with_step(step, seconds):
    return msgspec.structs.replace(step, step_s=seconds)
