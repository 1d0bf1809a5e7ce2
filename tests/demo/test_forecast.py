import pytest

from penstock.demo.forecast import expected_samples_s
from penstock.probe.results import DecodePoint
from penstock.recording.format import EpochStartLine, FetchLine, LoaderLine, Machine, RunLine, StepLine
from penstock.recording.reader import load
from penstock.recording.writer import Recorder
from penstock.verify.measures import main_loader


@pytest.fixture
def evidence(tmp_path):
    """Return a function that makes the evidence of a run on two cores: 10 ms steps with 8 samples, no workers."""

    def make(*, fetched=True):
        recorder = Recorder(tmp_path / "run.jsonl", RunLine(machine=Machine(cores=2, usable_cores=2)))
        recorder.put(LoaderLine(loader=0, type="torch"))
        recorder.put(EpochStartLine(loader=0, epoch=0, at_s=0.0))
        for batch in range(40):
            at_s = batch * 0.06
            if fetched:
                recorder.put(FetchLine(loader=0, batch=batch, worker=-1, at_s=at_s, fetch_s=0.05, cpu_s=0.05))
            recorder.put(StepLine(loader=0, batch=batch, at_s=at_s, wait_s=0.05, step_s=0.01, samples=8))
        recorder.close()
        return main_loader(load(tmp_path / "run.jsonl"), "it")

    return make


def test_expensive_samples_and_the_step_share_the_cores(evidence):
    point = DecodePoint(workers=2, samples_per_s=200.0, cpu_s_per_sample=0.01)
    bound = 8 * 2 / (8 * 0.01 + 0.01)
    assert 0.7 * bound < expected_samples_s(evidence(), point) <= bound


def test_the_training_is_not_faster_than_its_step(evidence):
    point = DecodePoint(workers=2, samples_per_s=20_000.0, cpu_s_per_sample=0.0001)
    assert 0.7 * 8 / 0.01 < expected_samples_s(evidence(), point) <= 8 / 0.01


def test_without_recorded_batches_there_is_no_forecast(evidence):
    point = DecodePoint(workers=2, samples_per_s=200.0, cpu_s_per_sample=0.01)
    assert expected_samples_s(evidence(fetched=False), point) is None
