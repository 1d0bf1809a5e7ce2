"""What waiting costs, worked out by hand."""

import pytest
from tests.diagnose.evidence.test_evidence import recorded, step

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.impact import compute_impact
from penstock.recording.format import Gpu, LoaderLine, Machine, RunLine
from penstock.recording.reader import Recording


def impact(steps, batches=None, **run):
    recording = Recording(run=RunLine(**run), loaders={0: LoaderLine(loader=0, batches=batches)}, steps=tuple(steps))
    return compute_impact(recording, gather(recording))


def test_waits_and_start_up_are_counted_over_the_time_of_all_steps():
    found = impact([step(0, 3.0, 1.0), *(step(at, 0.5, 1.0) for at in range(1, 11))])
    assert found.run_s == pytest.approx(4.0 + 10 * 1.5)
    assert found.waited_s == pytest.approx(3.0 + 10 * 0.5)
    assert found.share == pytest.approx(8.0 / 19.0)


def test_taking_a_ready_batch_is_not_waiting():
    ready = [step(at, 0.01, 1.0, ready=3) for at in range(1, 10)]
    assert impact([*ready, step(10, 2.01, 1.0, ready=0)]).waited_s == pytest.approx(2.0)


def test_pauses_are_no_time_of_the_loop():
    found = impact([step(at, 1.0, 9.0, phases={"evaluation": 8.0}) for at in range(1, 5)])
    assert (found.run_s, found.share) == (pytest.approx(8.0), pytest.approx(0.5))


def test_whole_epochs_are_measured():
    steps = [step(at, 1.0, 1.0, epoch=number) for number in range(2) for at in range(4)]
    assert impact(steps, batches=4).per_epoch_s == pytest.approx(4.0)


def test_a_part_of_an_epoch_is_scaled_up():
    assert impact([step(at, 1.0, 1.0) for at in range(5)], batches=100).per_epoch_s == pytest.approx(100.0)


def test_an_epoch_of_unknown_length_costs_an_unknown_time():
    assert impact([step(0), step(1)]).per_epoch_s is None


@pytest.mark.parametrize(
    ("run", "devices"),
    [
        ({}, 1),
        ({"machine": Machine(gpus=(Gpu(name="a"), Gpu(name="b")))}, 2),
        ({"machine": Machine(gpus=(Gpu(name="a"),)), "world_size": 8}, 8),
    ],
)
def test_every_device_that_waits_is_paid_for(run, devices):
    assert impact([step(at, 3600.0, 0.0) for at in range(2)], **run).gpu_hours == pytest.approx(2.0 * devices)


def test_several_loaders_add_up():
    loaders = {number: LoaderLine(loader=number) for number in (0, 1)}
    recording = recorded([step(1, 1.0, 1.0), step(1, 2.0, 4.0, loader=1)], loaders=loaders)
    found = compute_impact(recording, gather(recording))
    assert (found.waited_s, found.run_s) == (pytest.approx(3.0), pytest.approx(8.0))


def test_no_time_is_no_share():
    assert impact([step(0, 0.0, 0.0)]).share == 0.0
