"""Changes to the training step: some with a gain from measured times, the others only to try."""

from dataclasses import replace

import msgspec
import pytest
from tests.support.simulated_recordings import TorchRun

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import LoaderDiagnosis
from penstock.plan.step_changes import step_changes
from penstock.recording.format import Gpu, GpuLoad

CYCLE = 0.0202
"""Seconds of a step in simulated runs, with the receiving of its batch."""


def changes(recording=None, **run_properties):
    """Return the changes for a recording, or for a simulated run with these properties, by name."""
    recording = TorchRun(**run_properties).recording() if recording is None else recording
    return {change.name: change for change in step_changes(LoaderDiagnosis(gather(recording)[0]))}


def gpu_recording(used_percent=30, **run_properties):
    """Return the recording of a run on a GPU whose memory is used to this percentage."""
    gpus = {
        "machine": {"gpus": (Gpu(name="H200", memory_bytes=100),)},
        "gpus": (GpuLoad(memory_used_bytes=used_percent),),
    }
    return TorchRun(step_s=0.2, cpu_s=0.1, system=gpus, **run_properties).recording()


@pytest.mark.parametrize(
    ("name", "phases", "gain"),
    [
        ("sync", {"forward": 0.004, "backward": 0.004, "sync": 0.012}, CYCLE / 0.012 - 1),
        ("logging", {"forward": 0.012, "log": 0.008}, CYCLE / (CYCLE - 0.008) - 1),
        ("python", {"forward": 0.004, "backward": 0.004}, CYCLE / (CYCLE - 0.012) - 1),
    ],
)
def test_the_gain_of_removing_work_beside_the_model_comes_from_its_measured_time(name, phases, gain):
    found = changes(phases=phases)
    assert list(found) == [name]
    assert found[name].gain == pytest.approx(gain, rel=0.1)
    assert found[name].reason


def test_a_shorter_step_is_not_proposed_if_loading_limits_the_rate():
    phases = {"forward": 0.012, "log": 0.008}
    assert changes(workers=1, cpu_s=0.05, phases=phases) == {}
    assert "logging" in changes(workers=4, cpu_s=0.05, phases=phases)


def test_without_fetches_the_gain_is_that_of_the_step_alone():
    recording = replace(TorchRun(phases={"forward": 0.012, "log": 0.008}).recording(), fetches=())
    assert changes(recording)["logging"].gain == pytest.approx(CYCLE / (CYCLE - 0.008) - 1, rel=0.1)


def test_accumulation_is_proposed_for_a_slow_optimizer():
    found = changes(phases={"forward": 0.01, "optimizer": 0.01})
    assert (found["accumulation"].then, found["accumulation"].now) == (4, None)
    assert found["accumulation"].gain == pytest.approx(CYCLE / (CYCLE - 0.0075) - 1, rel=0.1)
    assert "learning rate" in found["accumulation"].cost


def test_accumulation_is_not_proposed_for_a_fast_optimizer():
    assert changes(phases={"forward": 0.018, "optimizer": 0.002}) == {}


def test_the_optimizer_is_timed_on_the_device_if_the_device_limits_the_step():
    recording = TorchRun(phases={"forward": 0.019, "optimizer": 0.001}).recording()
    steps = [
        msgspec.structs.replace(step, device_phases={"forward": 0.01, "optimizer": 0.01}) for step in recording.steps
    ]
    assert "accumulation" in changes(replace(recording, steps=tuple(steps)))


def test_batches_of_several_sizes_give_the_gain_of_a_larger_batch():
    recording = TorchRun().recording()
    steps = [
        msgspec.structs.replace(step, samples=64, step_s=0.03) if index % 5 < 2 else step
        for index, step in enumerate(recording.steps)
    ]
    found = changes(replace(recording, steps=tuple(steps)))["batch_size"]
    assert (found.now, found.then) == (16, 64)
    assert found.gain > 0.2
    assert "sweep" in found.reason


def test_a_blocking_copy_is_named_without_a_gain_which_pin_memory_counts():
    found = changes(phases={"forward": 0.012, "h2d": 0.008}, settings={"pin_memory": False})["copy"]
    assert found.gain is None
    assert "pin_memory" in found.reason


# -- changes to try ------------------------------------------------------------------------------------------------


def test_a_gpu_step_that_limits_the_rate_gets_changes_to_try_without_a_gain():
    found = changes(gpu_recording())
    assert set(found) == {"precision", "compile", "channels_last", "batch_size"}
    assert all(change.gain is None for change in found.values())
    assert "not known before it is tried" in found["precision"].reason
    assert "30% of the device's memory" in found["batch_size"].reason


def test_a_device_that_waits_for_the_host_gets_other_changes_to_try():
    recording = gpu_recording()
    steps = [msgspec.structs.replace(step, device_phases={"forward": 0.05}) for step in recording.steps]
    found = changes(replace(recording, steps=tuple(steps)))
    assert set(found) == {"compile", "batch_size"}
    assert "busy for 25% of it: it waits for the host" in found["compile"].reason


def test_a_larger_batch_is_not_proposed_if_the_device_memory_is_full():
    assert "batch_size" not in changes(gpu_recording(used_percent=95))


def test_device_memory_that_was_not_sampled_is_not_mentioned():
    system = {"machine": {"gpus": (Gpu(name="H200"),)}}
    assert "memory" not in changes(step_s=0.2, cpu_s=0.1, system=system)["batch_size"].reason


def test_changes_with_a_gain_come_before_those_to_try():
    found = list(changes(gpu_recording(phases={"forward": 0.15, "log": 0.05})).values())
    assert found[0].name == "logging"
    assert all(change.gain is None for change in found[1:])


@pytest.mark.parametrize("run_properties", [{}, {"step_s": 0.2, "cpu_s": 0.1}, {"count": 5, "phases": {"log": 0.01}}])
def test_a_step_on_the_cpu_without_a_cause_gets_no_changes(run_properties):
    assert changes(**run_properties) == {}
