"""The benchmark of the examples (`make examples`)."""

import importlib

import pytest
import torch
from benchmarks.examples.meter import Limits, Meter, Pace
from benchmarks.examples.report import findings
from benchmarks.examples.runs import Measured
from benchmarks.examples.single_run import losses, timed
from benchmarks.result import Line, Table

from penstock.testing import FakeClock

without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has a clock of its own")


class Slow:
    """A loader of two batches, each of which takes so many seconds."""

    def __init__(self, clock, seconds):
        self.clock = clock
        self.seconds = seconds

    def __iter__(self):
        for _ in range(2):
            self.clock.advance(self.seconds)
            yield {"image": torch.zeros(4, 3)}


@without_a_gpu
def test_a_meter_counts_the_batches_after_the_warm_up():
    clock = FakeClock()
    meter = Meter(Slow(clock, 3.0), Limits(warm_up=2, iterations=5, seconds=0.0), clock)
    for _ in meter:
        clock.advance(1.0)
    assert meter.pace() == Pace(iterations=5, samples=20, seconds=20.0, data_s=15.0)
    assert meter.pace().data_share == 0.75


@without_a_gpu
def test_a_meter_measures_for_its_seconds_at_least():
    clock = FakeClock()
    meter = Meter(Slow(clock, 0.5), Limits(warm_up=1, iterations=1, seconds=10.0), clock)
    for _ in meter:
        clock.advance(0.5)
    assert meter.pace().seconds == 10.0


@without_a_gpu
def test_a_warm_up_lasts_for_its_batches_and_its_seconds():
    clock = FakeClock()
    meter = Meter(Slow(clock, 1.0), Limits(warm_up=2, iterations=3, seconds=0.0, warm_up_s=7.0), clock)
    assert len([clock.advance(1.0) for _ in meter]) == 4 + 3
    assert meter.pace().iterations == 3


def test_a_toy_is_timed_over_several_epochs(tmp_path):
    example = importlib.import_module("examples.distill.train")
    changed = {"samples": 16, "shards": 2}
    pace = timed(example, tmp_path, ["copies"], Limits(1, 4, 0.0), toy=True, changed=changed)
    assert (pace.iterations, pace.samples) == (4, 32)
    assert 0 <= pace.data_share < 1


def test_losses_are_of_the_same_samples_even_if_another_sampler_is_among_the_habits(tmp_path):
    example = importlib.import_module("examples.reid.train")
    changed = {"samples": 160, "people": 16, "distinct": 8}
    default, before = (
        losses(example, tmp_path, list(habits), toy=True, changed=changed) for habits in ((), example.HABITS)
    )
    assert default == pytest.approx(before, rel=1e-4)
    assert len(default) > 1


def measured(device):
    """Return results in which the training by default is twice as fast as with all habits."""
    fast, slow = Pace(30, 240, 10.0, 0.1), Pace(30, 120, 10.0, 8.0)
    return Measured(
        example="distill",
        device=device,
        default=[fast] * 3,
        before=[slow] * 3,
        with_habit={"clip": [slow, fast]},
        default_beside_habits=[fast, slow],
        default_losses=[2.0, 1.0],
        before_losses=[2.0, 1.1],
    )


def test_targets_on_a_gpu_are_higher_than_on_a_cpu():
    on_gpu, on_cpu = (
        {each.what: each for each in findings(measured(device), "make") if isinstance(each, Line)}
        for device in ("NVIDIA H200", "CPU, one thread")
    )
    assert on_gpu["distill: samples/s"].ratio == on_cpu["distill: samples/s"].ratio == 2.0
    assert (on_gpu["distill: samples/s"].reached, on_cpu["distill: samples/s"].reached) == (False, True)
    assert on_gpu["distill: data share of the step"].reached
    assert "distill: data share of the step" not in on_cpu
    assert not on_cpu["distill: largest difference of the losses of the first 2 steps"].reached


def test_the_table_has_each_variant_and_its_speed_relative_to_the_default_of_the_same_rounds():
    (table,) = (each for each in findings(measured("CPU"), "make") if isinstance(each, Table))
    assert [(row[0], row[-1]) for row in table.rows] == [
        ("default", "1.00"),
        ("--before", "0.50"),
        ("default with habit clip", "1.25"),  # the median of 0.5 and 2
    ]
