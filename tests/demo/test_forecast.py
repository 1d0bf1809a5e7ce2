import pytest

from penstock.demo.forecast import expected_samples_s
from penstock.probe.results import DecodePoint
from penstock.recording.format import EpochStartLine, FetchLine, LoaderLine, Machine, RunLine, StepLine
from penstock.recording.reader import load
from penstock.recording.writer import Recorder
from penstock.verify.measures import main_loader


@pytest.fixture
def seen(tmp_path):
    """Steps of 10 ms with 8 samples each, whose batches the main process made, on two cores."""

    def see(*, fetched=True):
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

    return see


def test_costly_samples_and_the_step_share_the_cores(seen):
    point = DecodePoint(workers=2, samples_per_s=200.0, cpu_s_per_sample=0.01)
    law = 8 * 2 / (8 * 0.01 + 0.01)
    assert 0.7 * law < expected_samples_s(seen(), point) <= law


def test_nothing_makes_the_training_faster_than_its_step(seen):
    point = DecodePoint(workers=2, samples_per_s=20_000.0, cpu_s_per_sample=0.0001)
    assert 0.7 * 8 / 0.01 < expected_samples_s(seen(), point) <= 8 / 0.01


def test_of_batches_that_nobody_saw_nothing_is_expected(seen):
    point = DecodePoint(workers=2, samples_per_s=200.0, cpu_s_per_sample=0.01)
    assert expected_samples_s(seen(fetched=False), point) is None
