"""Changes to the data: only where a rule names the cause, with a gain that can be computed by hand, and a cost."""

from dataclasses import replace

import pytest
from tests.support.made_recordings import SAMPLES, Made

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import LoaderDiagnosis
from penstock.plan.data_changes import data_changes
from penstock.plan.predict import gain_of_edit
from penstock.recording.format import StackSamplesLine

MB = 1 << 20
STEP_BOUND = 1 / 0.0202
"""Batches per second of made-up runs once nothing else holds them up: the step and the hand-over."""

DECODING = {"cores": 2, "cpu_s": 0.2, "step_s": 0.01, "fetch": {"read_bytes": SAMPLES * MB}}
FULL_DISK = {
    "cpu_s": 0.005,
    "io_s": 0.05,
    "states": {"read": 85},
    "fetch": {"read_bytes": 8 * MB, "reads": 16},
    "after": {"sequential_alone": 160 * MB, "sequential_together": 165 * MB},
}
SCATTERED = {
    "cpu_s": 0.005,
    "io_s": 0.05,
    "states": {"read": 85},
    "fetch": {"read_bytes": 65536, "reads": 64},
    "after": {"random_alone": 1 * MB, "random_together": 1.3 * MB},
}


def loader(functions=None, **made):
    recording = Made(**made).recording()
    if functions:
        states = made.get("states", {})
        looks = StackSamplesLine(
            loader=0,
            worker=0,
            at_s=1.0,
            samples=100,
            states={"running": 100 - sum(states.values()), **states},
            functions=functions,
        )
        recording = replace(recording, stack_samples=(looks,))
    return LoaderDiagnosis(gather(recording)[0])


def changes(functions=None, **made):
    return {change.name: change for change in data_changes(loader(functions, **made))}


# -- the cores are full --------------------------------------------------------------------------------------------


def test_smaller_images_where_workers_decode_them():
    found = changes({"PIL.ImageFile:ImageFile.load": 80, "mine:augment": 20}, **DECODING)
    assert list(found) == ["images"]
    # 2 cores, 200 ms of decoding and 10 ms of the step per batch: of the decoding 40% stay
    assert found["images"].gain == pytest.approx(0.21 / 0.09 - 1, rel=0.1)
    assert "80% of their stack samples" in found["images"].reason
    assert "assumes that half the side" in found["images"].reason


def test_another_codec_where_workers_unpack_arrays():
    found = changes({"zipfile:ZipExtFile._read1": 30, "numpy.lib._format_impl:read_array": 20, "m:f": 50}, **DECODING)
    assert list(found) == ["arrays"]
    assert found["arrays"].gain == pytest.approx(0.21 / 0.13 - 1, rel=0.1)
    assert "zstd takes 20% of deflate's time" in found["arrays"].reason


def test_images_and_arrays_the_larger_gain_first():
    found = changes({"PIL.Image:Image.resize": 60, "zipfile:ZipFile.open": 40}, **DECODING)
    assert list(found) == ["images", "arrays"]
    assert found["images"].gain > found["arrays"].gain > 0


@pytest.mark.parametrize("functions", [None, {"mine:decode": 90, "PILLAGE:go": 10}])
def test_without_a_known_library_no_gain_is_said(functions):
    found = changes(functions, **DECODING)
    assert list(found) == ["preparation"]
    assert found["preparation"].gain is None
    assert "no model can say" in found["preparation"].reason


def test_packing_costs_bytes_and_the_time_to_make_every_sample_once():
    cost = changes({"PIL.Image:open": 90}, **DECODING)["images"].cost
    assert "up to 105 GB written once" in cost  # 100 000 samples of 1 MiB
    assert "min at the measured" in cost
    assert "samples/s" in cost


def test_a_cost_that_cannot_be_known_is_not_made_up():
    found = changes({"PIL.Image:open": 90}, **{**DECODING, "fetch": {}})["images"]
    assert "GB" not in found.cost
    assert "samples/s" in found.cost


# -- the storage ---------------------------------------------------------------------------------------------------


def test_a_full_disk_wants_a_faster_one():
    found = changes(**FULL_DISK)
    assert list(found) == ["cache"]
    assert found["cache"].gain == pytest.approx(STEP_BOUND / 20 - 1, rel=0.1)  # 20 batches/s come from the disk
    assert "assumes a local SSD with 2 GB/s" in found["cache"].reason
    assert "52.4 GB on that disk" in found["cache"].cost  # 100 000 samples of half a MiB
    assert "MB/s" in found["cache"].cost


def test_a_full_disk_of_images_wants_fewer_bytes_too():
    found = changes({"PIL.ImageFile:ImageFile.load": 5, "tarfile:read": 95}, **FULL_DISK)
    assert set(found) == {"cache", "images"}
    assert found["images"].gain > 1
    assert found["images"].reason.startswith("The storage is full")


def test_a_disk_as_fast_as_the_one_that_would_be_proposed_is_left_alone():
    fast = {
        "fetch": {"read_bytes": 80 * MB, "reads": 160},
        "after": {"sequential_alone": 1600 * MB, "sequential_together": 1650 * MB},
    }
    assert "storage_bandwidth" in loader(**{**FULL_DISK, **fast}).suspects
    assert changes(**{**FULL_DISK, **fast}) == {}


def test_scattered_reads_want_shards_and_their_gain_is_what_was_measured_in_a_row():
    after = {**SCATTERED["after"], "sequential_alone": 190 * MB, "sequential_together": 200 * MB}
    found = changes(**{**SCATTERED, "after": after})
    assert set(found) == {"files", "cache"}
    assert found["files"].gain == pytest.approx(STEP_BOUND / 20 - 1, rel=0.1)
    assert "210 MB/s to readers of whole files" in found["files"].reason


def test_what_reading_in_a_row_would_give_is_not_guessed():
    found = changes(**SCATTERED)["files"]
    assert found.gain is None
    assert "was not measured" in found.reason


def test_a_file_per_sample_wants_shards():
    found = changes(
        cpu_s=0.01,
        latency_s=0.2,
        states={"open": 60, "read": 20},
        fetch={"opens": SAMPLES, "read_bytes": 65536, "reads": 32},
    )
    assert list(found) == ["files"]
    assert found["files"].now == "1.0 opened per sample"
    assert found["files"].gain == pytest.approx(STEP_BOUND / (4 / 0.21) - 1, rel=0.1)
    assert "75% of the workers' waiting is in opening files" in found["files"].reason


def test_a_long_way_wants_a_near_copy():
    found = changes(cpu_s=0.01, latency_s=0.2, states={"network": 80}, fetch={"read_bytes": MB, "reads": 16})
    assert list(found) == ["cache"]
    assert found["cache"].gain > 1


def test_bytes_that_nobody_counted_give_no_gain():
    found = changes(cpu_s=0.01, latency_s=0.2, states={"network": 80})
    assert found["cache"].gain is None
    assert "the number of bytes read" in found["cache"].reason
    assert "not recorded" in found["cache"].cost


def test_waiting_for_a_timer_is_not_cured_by_a_disk():
    assert changes(cpu_s=0.01, latency_s=0.2, states={"sleep": 80}, fetch={"read_bytes": MB, "reads": 16}) == {}


# -- nothing to say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [{}, {"step_s": 0.2, "cpu_s": 0.1}, {"workers": 0}, {"count": 10, **FULL_DISK}, {"lag": {2: 0.3}, "step_s": 0.01}],
)
def test_no_cause_in_the_data_no_change_to_it(made):
    assert changes({"PIL.Image:open": 90}, **made) == {}


def test_without_fetches_nothing_is_said():
    recording = replace(Made(**FULL_DISK).recording(), fetches=())
    assert data_changes(LoaderDiagnosis(gather(recording)[0])) == ()


def test_a_gain_is_a_hundredfold_at_most():
    workload = loader(cpu_s=0.05, step_s=0.0, receive_s=0.0, step_cpu=0.0).evidence.workload
    assert gain_of_edit(workload, lambda run: run.replace(cpu_s=run.cpu_s * 0)) == 99.0
