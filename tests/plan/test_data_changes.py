"""Changes to the data: proposed only if a rule names the cause, with a cost and with gains calculated by hand."""

from dataclasses import replace

import pytest
from tests.support.simulated_recordings import SAMPLES, TorchRun

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import LoaderDiagnosis
from penstock.plan.data_changes import data_changes
from penstock.plan.predict import gain_of_edit
from penstock.recording.format import StackSamplesLine

MB = 1 << 20
STEP_BOUND = 1 / 0.0202
"""Batches per second of simulated runs that only the step and the receiving of its batch limit."""

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


def diagnose(functions=None, **run_properties):
    """Return the diagnosis of a simulated run; `functions` is the number of stack samples of a worker by function."""
    recording = TorchRun(**run_properties).recording()
    if functions:
        states = run_properties.get("states", {})
        stack_samples = StackSamplesLine(
            loader=0,
            worker=0,
            at_s=1.0,
            samples=100,
            states={"running": 100 - sum(states.values()), **states},
            functions=functions,
        )
        recording = replace(recording, stack_samples=(stack_samples,))
    return LoaderDiagnosis(gather(recording)[0])


def changes(functions=None, **run_properties):
    return {change.name: change for change in data_changes(diagnose(functions, **run_properties))}


# -- the cores are full --------------------------------------------------------------------------------------------


def test_smaller_images_are_proposed_if_workers_spend_their_time_decoding():
    found = changes({"PIL.ImageFile:ImageFile.load": 80, "mine:augment": 20}, **DECODING)
    assert list(found) == ["images"]
    # per batch 200 ms of decoding on 2 cores and a step of 10 ms; 40% of the decoding remain
    assert found["images"].gain == pytest.approx(0.21 / 0.09 - 1, rel=0.1)
    assert "80% of their stack samples" in found["images"].reason
    assert "assumes that half the side" in found["images"].reason


def test_another_codec_is_proposed_if_workers_spend_their_time_unpacking_arrays():
    found = changes({"zipfile:ZipExtFile._read1": 30, "numpy.lib._format_impl:read_array": 20, "m:f": 50}, **DECODING)
    assert list(found) == ["arrays"]
    assert found["arrays"].gain == pytest.approx(0.21 / 0.13 - 1, rel=0.1)
    assert "zstd takes 20% of deflate's time" in found["arrays"].reason


def test_changes_are_sorted_by_gain():
    found = changes({"PIL.Image:Image.resize": 60, "zipfile:ZipFile.open": 40}, **DECODING)
    assert list(found) == ["images", "arrays"]
    assert found["images"].gain > found["arrays"].gain > 0


@pytest.mark.parametrize("functions", [None, {"mine:decode": 90, "PILLAGE:go": 10}])
def test_without_a_known_library_the_gain_is_unknown(functions):
    found = changes(functions, **DECODING)
    assert list(found) == ["preparation"]
    assert found["preparation"].gain is None
    assert "no model can say" in found["preparation"].reason


def test_the_cost_of_packing_is_in_bytes_and_in_time():
    cost = changes({"PIL.Image:open": 90}, **DECODING)["images"].cost
    assert "up to 105 GB written once" in cost  # 100 000 samples of 1 MiB
    assert "min at the measured" in cost
    assert "samples/s" in cost


def test_an_unknown_size_is_left_out_of_the_cost():
    found = changes({"PIL.Image:open": 90}, **{**DECODING, "fetch": {}})["images"]
    assert "GB" not in found.cost
    assert "samples/s" in found.cost


# -- the storage ---------------------------------------------------------------------------------------------------


def test_a_local_ssd_is_proposed_for_a_disk_at_its_bandwidth():
    found = changes(**FULL_DISK)
    assert list(found) == ["cache"]
    assert found["cache"].gain == pytest.approx(STEP_BOUND / 20 - 1, rel=0.1)  # 20 batches/s come from the disk
    assert "assumes a local SSD with 2 GB/s" in found["cache"].reason
    assert "52.4 GB on that disk" in found["cache"].cost  # 100 000 samples of half a MiB
    assert "MB/s" in found["cache"].cost


def test_smaller_images_are_proposed_for_a_disk_at_its_bandwidth():
    found = changes({"PIL.ImageFile:ImageFile.load": 5, "tarfile:read": 95}, **FULL_DISK)
    assert set(found) == {"cache", "images"}
    assert found["images"].gain > 1
    assert found["images"].reason.startswith("The storage is full")


def test_no_ssd_is_proposed_if_the_disk_is_about_as_fast():
    fast = {
        "fetch": {"read_bytes": 80 * MB, "reads": 160},
        "after": {"sequential_alone": 1600 * MB, "sequential_together": 1650 * MB},
    }
    assert "storage_bandwidth" in diagnose(**{**FULL_DISK, **fast}).suspects
    assert changes(**{**FULL_DISK, **fast}) == {}


def test_the_gain_of_shards_over_scattered_reads_comes_from_the_measured_sequential_rate():
    after = {**SCATTERED["after"], "sequential_alone": 190 * MB, "sequential_together": 200 * MB}
    found = changes(**{**SCATTERED, "after": after})
    assert set(found) == {"files", "cache"}
    assert found["files"].gain == pytest.approx(STEP_BOUND / 20 - 1, rel=0.1)
    assert "210 MB/s to readers of whole files" in found["files"].reason


def test_the_gain_of_shards_is_unknown_without_a_measured_sequential_rate():
    found = changes(**SCATTERED)["files"]
    assert found.gain is None
    assert "was not measured" in found.reason


def test_shards_are_proposed_for_one_file_per_sample():
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


def test_a_local_copy_is_proposed_for_data_behind_a_slow_network():
    found = changes(cpu_s=0.01, latency_s=0.2, states={"network": 80}, fetch={"read_bytes": MB, "reads": 16})
    assert list(found) == ["cache"]
    assert found["cache"].gain > 1


def test_the_gain_is_unknown_if_the_bytes_read_were_not_recorded():
    found = changes(cpu_s=0.01, latency_s=0.2, states={"network": 80})
    assert found["cache"].gain is None
    assert "the number of bytes read" in found["cache"].reason
    assert "not recorded" in found["cache"].cost


def test_no_ssd_is_proposed_for_workers_that_wait_for_a_timer():
    assert changes(cpu_s=0.01, latency_s=0.2, states={"sleep": 80}, fetch={"read_bytes": MB, "reads": 16}) == {}


# -- no changes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run_properties",
    [{}, {"step_s": 0.2, "cpu_s": 0.1}, {"workers": 0}, {"count": 10, **FULL_DISK}, {"lag": {2: 0.3}, "step_s": 0.01}],
)
def test_without_a_cause_in_the_data_no_change_is_proposed(run_properties):
    assert changes({"PIL.Image:open": 90}, **run_properties) == {}


def test_without_fetches_no_change_is_proposed():
    recording = replace(TorchRun(**FULL_DISK).recording(), fetches=())
    assert data_changes(LoaderDiagnosis(gather(recording)[0])) == ()


def test_a_gain_is_at_most_a_hundredfold_rate():
    workload = diagnose(cpu_s=0.05, step_s=0.0, receive_s=0.0, step_cpu=0.0).evidence.workload
    assert gain_of_edit(workload, lambda run: run.replace(cpu_s=run.cpu_s * 0)) == 99.0
