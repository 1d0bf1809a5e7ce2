"""The cost of waiting, calculated by hand."""

import pytest
from tests.diagnose.evidence.test_evidence import recorded, step

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.impact import compute_impact
from penstock.recording.format import Gpu, LoaderLine, Machine, RunLine
from penstock.recording.reader import Recording


def impact(steps, batches=None, **run):
    recording = Recording(run=RunLine(**run), loaders={0: LoaderLine(loader=0, batches=batches)}, steps=tuple(steps))
    return compute_impact(recording, gather(recording))


def test_the_share_is_all_waits_with_start_up_over_the_time_of_all_steps():
    found = impact([step(0, 3.0, 1.0), *(step(index, 0.5, 1.0) for index in range(1, 11))])
    assert found.run_s == pytest.approx(4.0 + 10 * 1.5)
    assert found.waited_s == pytest.approx(3.0 + 10 * 0.5)
    assert found.share == pytest.approx(8.0 / 19.0)


def test_receiving_a_ready_batch_is_not_waiting():
    ready = [step(index, 0.01, 1.0, ready=3) for index in range(1, 10)]
    assert impact([*ready, step(10, 2.01, 1.0, ready=0)]).waited_s == pytest.approx(2.0)


def test_pauses_do_not_count_as_time_of_the_run():
    found = impact([step(index, 1.0, 9.0, phases={"evaluation": 8.0}) for index in range(1, 5)])
    assert (found.run_s, found.share) == (pytest.approx(8.0), pytest.approx(0.5))


def test_the_wait_per_epoch_of_whole_epochs_is_measured():
    steps = [step(index, 1.0, 1.0, epoch=epoch) for epoch in range(2) for index in range(4)]
    assert impact(steps, batches=4).per_epoch_s == pytest.approx(4.0)


def test_the_wait_per_epoch_is_extrapolated_from_a_part_of_an_epoch():
    assert impact([step(index, 1.0, 1.0) for index in range(5)], batches=100).per_epoch_s == pytest.approx(100.0)


def test_the_wait_of_an_epoch_of_unknown_length_is_unknown():
    assert impact([step(0), step(1)]).per_epoch_s is None


@pytest.mark.parametrize(
    ("run", "devices"),
    [
        ({}, 1),
        ({"machine": Machine(gpus=(Gpu(name="a"), Gpu(name="b")))}, 2),
        ({"machine": Machine(gpus=(Gpu(name="a"),)), "world_size": 8}, 8),
    ],
)
def test_gpu_hours_count_every_gpu(run, devices):
    assert impact([step(index, 3600.0, 0.0) for index in range(2)], **run).gpu_hours == pytest.approx(2.0 * devices)


def test_the_waits_of_several_loaders_add_up():
    loaders = {number: LoaderLine(loader=number) for number in (0, 1)}
    recording = recorded([step(1, 1.0, 1.0), step(1, 2.0, 4.0, loader=1)], loaders=loaders)
    found = compute_impact(recording, gather(recording))
    assert (found.waited_s, found.run_s) == (pytest.approx(3.0), pytest.approx(8.0))


def test_a_run_that_takes_no_time_has_a_share_of_0():
    assert impact([step(0, 0.0, 0.0)]).share == 0.0
