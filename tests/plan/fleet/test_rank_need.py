"""The need of one rank, derived from simulated recordings and from probe results with known numbers."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.fleet_needs import probed
from tests.support.simulated_recordings import SAMPLES, TorchRun

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


def test_the_need_of_a_torch_dataloader_comes_from_its_fetches():
    found = need_from_recording(TorchRun(fetch=READS, receive_s=0.0, step_cpu=0.0).recording())
    assert found.samples_per_batch == SAMPLES
    assert (found.batch_bytes, found.batch_requests) == (8_000_000, 16)
    assert found.cpu_s.mean() == pytest.approx(0.01, rel=0.05)
    assert found.step_s.mean() == pytest.approx(0.02, rel=0.05)
    assert (found.workers, found.prefetch, found.cores) == (4, 2, 8)
    assert found.dataset_bytes == pytest.approx(100_000 * 8_000_000 / SAMPLES)
    assert any("counts as a request" in note for note in found.notes)


def test_waiting_and_computing_are_separate():
    found = need_from_recording(TorchRun(latency_s=0.03, fetch=READS).recording())
    assert found.waited_s.mean() == pytest.approx(0.03, rel=0.1)


def test_recorded_steps_of_several_ranks_are_noted():
    recording = TorchRun(fetch=READS).recording()
    found = need_from_recording(replace(recording, run=RunLine(machine=recording.run.machine, world_size=4)))
    assert any("those of 4 ranks" in note for note in found.notes)


def test_uncounted_bytes_are_unknown():
    found = need_from_recording(TorchRun().recording())
    assert (found.batch_bytes, found.batch_requests, found.dataset_bytes) == (None, None, None)
    with pytest.raises(SettingError, match="not counted"):
        found.with_dataset(1e12)


def test_without_fetches_only_the_steps_are_known():
    recording = replace(TorchRun().recording(), fetches=())
    found = need_from_recording(recording)
    assert not found.cpu_s.any()
    assert found.step_s.mean() == pytest.approx(0.02, rel=0.05)
    assert any("left out" in note for note in found.notes)


def test_the_need_of_a_penstock_loader_comes_from_its_hops():
    recording = TorchRun(count=200).recording()
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


def test_too_few_steps_are_refused():
    with pytest.raises(RecordingError, match="too few"):
        need_from_recording(TorchRun(count=5).recording())


def test_a_need_from_probes_has_as_many_workers_as_keep_up_with_the_step():
    found = need_from_probes(probed(), StepFacts(0.04))
    assert found.source == "probes"
    assert (found.samples_per_batch, found.batch_bytes, found.batch_requests) == (8, 800_000, 8)
    assert found.cpu_s.mean() == pytest.approx(0.0805)
    assert found.workers == 4
    assert found.cores == 8
    assert found.samples is None
    assert found.with_dataset(1e9).samples == pytest.approx(1e4)


def test_the_waiting_of_a_batch_comes_from_the_probed_storage():
    curve = StorageCurve(
        (CurvePoint(1, 100.0, 400.0),), 100_000, OpenStat(10.0, 20.0, 5), True, "direct", 1 << 20, 2.0, 0.0
    )
    assert need_from_probes(probed(curve=curve), StepFacts(0.04)).waited_s.mean() == pytest.approx(8 / 400)


def test_probes_without_a_step_are_refused():
    with pytest.raises(SettingError, match="--step-ms"):
        need_from_probes(probed(), NO_STEP)


def test_the_variation_of_steps_is_kept():
    recording = TorchRun(step_s=0.02, fetch=READS).recording()
    step_s = np.tile([0.01, 0.03], 100)
    steps = [
        msgspec.structs.replace(step, step_s=seconds) for step, seconds in zip(recording.steps, step_s, strict=True)
    ]
    even, uneven = need_from_recording(recording), need_from_recording(replace(recording, steps=tuple(steps)))
    assert uneven.step_s.std() > 10 * even.step_s.std()
