import pickle
from pathlib import Path

import numpy as np
import pytest

from penstock.core.slab_layout import SlotSpec
from penstock.errors import SettingError, WorkerCrash
from penstock.probe.decode import EACH_S, LEAST_S, probe_decode, rate_in_processes, worker_counts
from penstock.probe.decode_process import decode_for
from penstock.probe.decode_samples import DecodeMaterial, made_up
from penstock.probe.results import DecodePoint
from penstock.testing import FakeClock


class Slow:
    """A field that takes a stated time by the test's clock."""

    suffixes = (".x",)

    def __init__(self, clock, seconds, *, fixed_shape=True):
        self.clock, self.seconds, self.fixed_shape = clock, seconds, fixed_shape
        self.into = self.alone = 0

    def decode_value(self, suffix, data):
        self.alone += 1
        self.clock.advance(self.seconds)

    def decode_into(self, suffix, data, slot):
        self.into += 1
        slot[...] = 1
        self.clock.advance(self.seconds)


def material_of(**fields):
    slots = {name: SlotSpec((2,), "<f4") for name, field in fields.items() if field.fixed_shape}
    return DecodeMaterial(({".x": b"1"}, {".x": b"2"}), fields, slots, "a test")


def test_decoding_goes_on_until_the_time_is_up():
    clock = FakeClock()
    fixed_shape, ragged = Slow(clock, 0.03), Slow(clock, 0.02, fixed_shape=False)
    ticks = iter([1.0, 1.5])
    done = decode_for(material_of(a=fixed_shape, b=ragged), 0.99, clock, lambda: next(ticks))
    assert done == (20, pytest.approx(1.0), 0.5)
    assert (fixed_shape.into, fixed_shape.alone, ragged.into, ragged.alone) == (20, 0, 0, 20)


def test_one_sample_is_decoded_though_there_is_no_time():
    clock = FakeClock()
    assert decode_for(material_of(a=Slow(clock, 0.5)), 0.0, clock)[:2] == (1, 0.5)


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_worker_counts_double_up_to_the_cores(cores, counts):
    assert worker_counts(cores) == counts


class Rates:
    """Measures in no time but the clock's: perfect scaling up to two workers."""

    def __init__(self, clock, start_s=0.5):
        self.clock, self.start_s, self.asked = clock, start_s, []

    def __call__(self, job, workers, seconds):
        assert isinstance(job, Path)
        assert job.stat().st_size > 0
        self.asked.append((workers, seconds))
        self.clock.advance(self.start_s + seconds)
        return DecodePoint(workers, 100.0 * min(workers, 2), 0.01)


def test_rates_at_every_count_with_what_was_decoded():
    clock = FakeClock()
    rates = Rates(clock)
    found = probe_decode(made_up(16, 2), workers=[1, 2, 4], clock=clock, rate=rates)
    assert [(point.workers, point.samples_per_s) for point in found.points] == [(1, 100.0), (2, 200.0), (4, 200.0)]
    assert rates.asked == [(1, EACH_S), (2, EACH_S), (4, EACH_S)]
    assert found.cpu_s_per_sample == pytest.approx(0.01)
    assert [found.scaling(point) for point in found.points] == pytest.approx([1, 1, 0.5])
    assert [point.cores_each for point in found.points] == pytest.approx([1, 1, 0.5])
    assert (found.best.workers, found.samples, found.decoded_bytes) == (2, 2, 3 * 16 * 16)
    assert found.seconds == pytest.approx(7.5)


def test_the_points_so_far_are_kept_when_the_time_is_up():
    clock = FakeClock()
    rates = Rates(clock, start_s=3.0)
    found = probe_decode(made_up(16, 1), workers=[1, 2, 4, 8], budget_s=8.0, clock=clock, rate=rates)
    assert [point.workers for point in found.points] == [1, 2]
    assert all(LEAST_S <= seconds <= EACH_S for _, seconds in rates.asked)


def test_there_is_always_one_point():
    clock = FakeClock()
    found = probe_decode(made_up(16, 1), workers=[3], budget_s=0.0, clock=clock, rate=Rates(clock))
    assert [point.workers for point in found.points] == [3]


@pytest.mark.parametrize("workers", [[], [0], [2, 1], [1, 1], [-1, 2]])
def test_counts_that_do_not_rise_from_1_on_are_refused(workers):
    with pytest.raises(SettingError, match="do not rise"):
        probe_decode(made_up(16, 1), workers=workers)


def test_a_real_process_decodes():
    found = probe_decode(made_up(32, 2), workers=[1], budget_s=0.5)
    point = found.points[0]
    assert 10 < point.samples_per_s < 1e6
    assert 0 < point.cores_each < 1.5


@pytest.fixture
def job(tmp_path):
    def write(material):
        file = tmp_path / "job"
        file.write_bytes(pickle.dumps(material))
        return file

    return write


def test_several_processes_are_added_up(job):
    point = rate_in_processes(job(made_up(32, 2)), 2, 0.1)
    assert point.workers == 2
    assert 10 < point.samples_per_s < 1e6


def test_a_process_that_dies_is_an_error_with_its_last_words(job, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)  # the process that decodes looks there, too
    from tests.support.odd_fields import Deadly, Raising

    with pytest.raises(WorkerCrash, match="ended early: killed"):
        rate_in_processes(job(material_of(a=Deadly())), 2, 0.1)
    with pytest.raises(WorkerCrash, match="ended early: ValueError: cannot be decoded here"):
        rate_in_processes(job(material_of(a=Raising())), 1, 0.1)


def test_fields_that_cannot_travel_are_refused():
    class Local:
        suffixes = (".x",)
        fixed_shape = False

    with pytest.raises(SettingError, match="cannot be sent to a process"):
        probe_decode(material_of(a=Local()), workers=[1])


def test_slots_are_written_in_place():
    clock = FakeClock()
    material = material_of(a=Slow(clock, 1.0))
    assert np.dtype(material.slots["a"].dtype) == np.float32
    assert decode_for(material, 3.0, clock).samples == 3
