import io
import pickle
from pathlib import Path

import numpy as np
import pytest

from penstock.core.slab_layout import SlotSpec
from penstock.data.fields import Array, Field, Image, Raw
from penstock.errors import SampleError, SettingError, ShardError, WorkerCrash
from penstock.probe import decode as decode_module
from penstock.probe.decode import (
    LEAST_POINT_S,
    POINT_S,
    DecodeInput,
    decode_for,
    input_from_shard,
    measure_in_processes,
    part_for,
    probe_decode,
    synthetic_input,
    worker_counts,
)
from penstock.probe.results import DecodePoint
from penstock.testing import REID, SA1B, FakeClock, make_shards, tar_bytes


class SlowField(Field):
    """A field that takes a stated time by the test's clock."""

    suffixes = (".x",)

    fixed_shape = True

    def __init__(self, clock, seconds, *, fixed_shape=True):
        self.clock, self.seconds, self.fixed_shape = clock, seconds, fixed_shape
        self.into_calls = self.value_calls = 0

    def decode_value(self, suffix, data, sample):
        self.value_calls += 1
        self.clock.advance(self.seconds)

    def decode_into(self, suffix, data, slot, sample):
        self.into_calls += 1
        slot[...] = 1
        self.clock.advance(self.seconds)


def input_of(**fields):
    slots = {name: SlotSpec((2,), "<f4") for name, field in fields.items() if field.fixed_shape}
    return DecodeInput(({".x": b"1"}, {".x": b"2"}), fields, slots, "a test")


def test_samples_are_decoded_until_the_time_is_up():
    clock = FakeClock()
    fixed_shape, ragged = SlowField(clock, 0.03), SlowField(clock, 0.02, fixed_shape=False)
    ticks = iter([1.0, 1.5])
    done = decode_for(input_of(a=fixed_shape, b=ragged), 0.99, clock, lambda: next(ticks))
    assert done == (20, pytest.approx(1.0), 0.5)
    assert (fixed_shape.into_calls, fixed_shape.value_calls, ragged.into_calls, ragged.value_calls) == (20, 0, 0, 20)


def test_one_sample_is_decoded_even_without_time():
    clock = FakeClock()
    assert decode_for(input_of(a=SlowField(clock, 0.5)), 0.0, clock)[:2] == (1, 0.5)


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_worker_counts_double_up_to_the_cores(cores, counts):
    assert worker_counts(cores) == counts


class Rates:
    """Advances the test's clock instead of decoding; scales perfectly up to two workers."""

    def __init__(self, clock, start_s=0.5):
        self.clock, self.start_s, self.calls = clock, start_s, []

    def __call__(self, job, workers, seconds):
        assert isinstance(job, Path)
        assert job.stat().st_size > 0
        self.calls.append((workers, seconds))
        self.clock.advance(self.start_s + seconds)
        return DecodePoint(workers, 100.0 * min(workers, 2), 0.01)


def test_rates_are_measured_at_every_number_of_workers():
    clock = FakeClock()
    rates = Rates(clock)
    found = probe_decode(synthetic_input(16, 2), workers=[1, 2, 4], clock=clock, measure_rate=rates)
    assert [(point.workers, point.samples_per_s) for point in found.points] == [(1, 100.0), (2, 200.0), (4, 200.0)]
    assert rates.calls == [(1, POINT_S), (2, POINT_S), (4, POINT_S)]
    assert found.cpu_s_per_sample == pytest.approx(0.01)
    assert [found.scaling(point) for point in found.points] == pytest.approx([1, 1, 0.5])
    assert [point.cores_per_worker for point in found.points] == pytest.approx([1, 1, 0.5])
    assert (found.best.workers, found.samples, found.decoded_bytes) == (2, 2, 3 * 16 * 16)
    assert found.seconds == pytest.approx(7.5)


def test_points_measured_before_the_time_is_up_are_the_result():
    clock = FakeClock()
    rates = Rates(clock, start_s=3.0)
    found = probe_decode(synthetic_input(16, 1), workers=[1, 2, 4, 8], budget_s=8.0, clock=clock, measure_rate=rates)
    assert [point.workers for point in found.points] == [1, 2]
    assert all(LEAST_POINT_S <= seconds <= POINT_S for _, seconds in rates.calls)


def test_one_point_is_measured_even_without_time():
    clock = FakeClock()
    found = probe_decode(synthetic_input(16, 1), workers=[3], budget_s=0.0, clock=clock, measure_rate=Rates(clock))
    assert [point.workers for point in found.points] == [3]


@pytest.mark.parametrize("workers", [[], [0], [2, 1], [1, 1], [-1, 2]])
def test_numbers_of_workers_that_do_not_rise_from_1_are_refused(workers):
    with pytest.raises(SettingError, match="do not rise"):
        probe_decode(synthetic_input(16, 1), workers=workers)


def test_a_real_process_decodes_samples():
    found = probe_decode(synthetic_input(32, 2), workers=[1], budget_s=0.5)
    point = found.points[0]
    assert 10 < point.samples_per_s < 1e6
    assert 0 < point.cores_per_worker < 1.5


@pytest.fixture
def job(tmp_path):
    def write(decode_input):
        file = tmp_path / "job"
        file.write_bytes(pickle.dumps(decode_input))
        return file

    return write


def test_the_rates_of_several_processes_are_summed(job):
    point = measure_in_processes(job(synthetic_input(32, 2)), 2, 0.1)
    assert point.workers == 2
    assert 10 < point.samples_per_s < 1e6


def test_a_process_that_dies_is_an_error_with_the_end_of_its_stderr(job, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)  # the child process imports from there too
    from tests.support.failing_fields import Deadly, Raising

    with pytest.raises(WorkerCrash, match="ended early: killed"):
        measure_in_processes(job(input_of(a=Deadly())), 2, 0.1)
    with pytest.raises(WorkerCrash, match="ended early: ValueError: cannot be decoded here"):
        measure_in_processes(job(input_of(a=Raising())), 1, 0.1)


def test_fields_that_cannot_be_pickled_are_refused():
    class Local(Raw):
        pass

    with pytest.raises(SettingError, match="cannot be sent to a process"):
        probe_decode(input_of(a=Local(".x")), workers=[1])


def test_fields_of_fixed_shape_decode_into_slots():
    clock = FakeClock()
    decode_input = input_of(a=SlowField(clock, 1.0))
    assert np.dtype(decode_input.slots["a"].dtype) == np.float32
    assert decode_for(decode_input, 3.0, clock).samples == 3


# -- samples -------------------------------------------------------------------------------------------------------

IMAGE_FIELD = {"image": Image(".jpg", size=32, fit="stretch")}


def test_synthetic_images_decode_to_squares():
    decode_input = synthetic_input(size=48, count=2)
    assert decode_input.slots == {"image": SlotSpec((3, 48, 48), "|u1")}
    assert (len(decode_input.samples), decode_input.bad, decode_input.decoded_bytes) == (2, 0, 3 * 48 * 48)
    assert 10_000 < decode_input.sample_bytes < 200_000
    assert "synthetic" in decode_input.source


@pytest.mark.parametrize("compression", [None, "gz"])
def test_samples_of_a_shard_hold_only_the_parts_that_are_decoded(tmp_path, compression):
    (shard,) = make_shards(tmp_path, SA1B, samples=3, order="grouped", scale=0.05, compression=compression)
    decode_input = input_from_shard(shard, {"features": Array("_features.npz", key="features")})
    assert [list(sample) for sample in decode_input.samples] == [["_features.npz"]] * 3
    assert decode_input.slots["features"].dtype == "<f2"
    assert decode_input.source == shard.name


def test_no_more_samples_are_read_than_the_limits_allow(tmp_path, monkeypatch):
    (shard,) = make_shards(tmp_path, REID, samples=40, scale=0.5)
    assert len(input_from_shard(shard, IMAGE_FIELD).samples) == decode_module.SAMPLES_MAX
    monkeypatch.setattr(decode_module, "BYTES_MAX", 1)
    assert len(input_from_shard(shard, IMAGE_FIELD).samples) == 1  # the first sample is taken whatever its size
    monkeypatch.setattr(decode_module, "FIRST_BYTES_MAX", 1)
    with pytest.raises(ShardError, match="first sample is larger"):
        input_from_shard(shard, IMAGE_FIELD)


def test_bad_samples_are_left_out_and_counted(tmp_path):
    (whole,) = make_shards(tmp_path, REID, samples=1, scale=0.5)
    good = input_from_shard(whole, IMAGE_FIELD).samples[0][".jpg"]
    shard = tmp_path / "mixed.tar"
    shard.write_bytes(tar_bytes([("a.jpg", b"not an image"), ("b.jpg", good), ("c.jpg", good)]))
    decode_input = input_from_shard(shard, IMAGE_FIELD)
    assert (len(decode_input.samples), decode_input.bad) == (2, 1)


def test_arrays_that_differ_in_shape_from_the_first_are_left_out(tmp_path):
    members = [(f"{name}.npy", npy(np.zeros(size))) for name, size in (("a", 4), ("b", 5), ("c", 4))]
    shard = tmp_path / "ragged.tar"
    shard.write_bytes(tar_bytes(members))
    assert input_from_shard(shard, {"x": Array(".npy")}).bad == 1
    assert input_from_shard(shard, {"x": Array(".npy", ragged=True)}).bad == 0


def test_a_shard_in_which_no_sample_decodes_is_an_error_with_the_reason(tmp_path):
    shard = tmp_path / "bad.tar"
    shard.write_bytes(tar_bytes([("a.jpg", b"not an image")]))
    with pytest.raises(SampleError):
        input_from_shard(shard, IMAGE_FIELD)
    with pytest.raises(SampleError, match=r"has no part \.png"):
        input_from_shard(shard, {"image": Image(".png", size=8)})


def test_any_exception_of_a_users_field_is_reported(tmp_path):
    class Broken(Field):
        suffixes = (".jpg",)
        fixed_shape = False

        def decode_value(self, suffix, data, sample):
            raise ZeroDivisionError("mine")

    shard = tmp_path / "s.tar"
    shard.write_bytes(tar_bytes([("a.jpg", b"x")]))
    with pytest.raises(SampleError, match="ZeroDivisionError: mine"):
        input_from_shard(shard, {"image": Broken()})


def test_the_first_suffix_that_the_sample_has_is_used():
    field = Image((".png", ".jpg"), size=8)
    assert part_for(field, {".jpg": b"j", ".png": b"p"}) == (".png", b"p")


def test_the_input_can_be_pickled():
    decode_input = synthetic_input(size=16, count=1)
    assert pickle.loads(pickle.dumps(decode_input)) == decode_input


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
