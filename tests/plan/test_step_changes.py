"""Changes to the step: with the gain that was timed, or as things to try."""

from dataclasses import replace

import msgspec
import pytest
from tests.support.made_recordings import Made

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import LoaderDiagnosis
from penstock.plan.step_changes import step_changes
from penstock.recording.format import Gpu, GpuLoad

CYCLE = 0.0202
"""Seconds of a step in made-up runs, the hand-over counted in."""


def changes(recording=None, **made):
    recording = Made(**made).recording() if recording is None else recording
    return {change.name: change for change in step_changes(LoaderDiagnosis(gather(recording)[0]))}


def with_gpu(used=30, **made):
    system = {"machine": {"gpus": (Gpu(name="H200", memory_bytes=100),)}, "gpus": (GpuLoad(memory_used_bytes=used),)}
    return Made(step_s=0.2, cpu_s=0.1, system=system, **made).recording()


@pytest.mark.parametrize(
    ("name", "phases", "gain"),
    [
        ("sync", {"forward": 0.004, "backward": 0.004, "sync": 0.012}, CYCLE / 0.012 - 1),
        ("logging", {"forward": 0.012, "log": 0.008}, CYCLE / (CYCLE - 0.008) - 1),
        ("python", {"forward": 0.004, "backward": 0.004}, CYCLE / (CYCLE - 0.012) - 1),
    ],
)
def test_what_the_loop_does_beside_the_model_has_been_timed(name, phases, gain):
    found = changes(phases=phases)
    assert list(found) == [name]
    assert found[name].gain == pytest.approx(gain, rel=0.1)
    assert found[name].reason


def test_a_shorter_step_gives_nothing_where_the_data_sets_the_pace():
    phases = {"forward": 0.012, "log": 0.008}
    assert changes(workers=1, cpu_s=0.05, phases=phases) == {}
    assert "logging" in changes(workers=4, cpu_s=0.05, phases=phases)


def test_without_fetches_the_timed_gain_stands():
    recording = replace(Made(phases={"forward": 0.012, "log": 0.008}).recording(), fetches=())
    assert changes(recording)["logging"].gain == pytest.approx(CYCLE / (CYCLE - 0.008) - 1, rel=0.1)


def test_an_optimizer_that_takes_long_is_accumulated_for():
    found = changes(phases={"forward": 0.01, "optimizer": 0.01})
    assert (found["accumulation"].then, found["accumulation"].now) == (4, None)
    assert found["accumulation"].gain == pytest.approx(CYCLE / (CYCLE - 0.0075) - 1, rel=0.1)
    assert "learning rate" in found["accumulation"].cost


def test_a_quick_optimizer_is_left_alone():
    assert changes(phases={"forward": 0.018, "optimizer": 0.002}) == {}


def test_the_optimizer_is_timed_on_the_device_where_that_sets_the_pace():
    recording = Made(phases={"forward": 0.019, "optimizer": 0.001}).recording()
    steps = [
        msgspec.structs.replace(step, device_phases={"forward": 0.01, "optimizer": 0.01}) for step in recording.steps
    ]
    assert "accumulation" in changes(replace(recording, steps=tuple(steps)))


def test_batches_of_several_sizes_say_what_a_larger_one_gives():
    recording = Made().recording()
    steps = [
        msgspec.structs.replace(step, samples=64, step_s=0.03) if at % 5 < 2 else step
        for at, step in enumerate(recording.steps)
    ]
    found = changes(replace(recording, steps=tuple(steps)))["batch_size"]
    assert (found.now, found.then) == (16, 64)
    assert found.gain > 0.2
    assert "sweep" in found.reason


def test_a_copy_that_blocks_is_named_and_its_gain_left_to_pin_memory():
    found = changes(phases={"forward": 0.012, "h2d": 0.008}, settings={"pin_memory": False})["copy"]
    assert found.gain is None
    assert "pin_memory" in found.reason


# -- to try ----------------------------------------------------------------------------------------------------------


def test_a_step_that_takes_all_the_time_on_a_gpu_has_things_to_try_and_no_invented_gain():
    found = changes(with_gpu())
    assert set(found) == {"precision", "compile", "channels_last", "batch_size"}
    assert all(change.gain is None for change in found.values())
    assert "not known before it is tried" in found["precision"].reason
    assert "30% of the device's memory" in found["batch_size"].reason


def test_a_device_that_waits_for_the_host_has_other_things_to_try():
    recording = with_gpu()
    steps = [msgspec.structs.replace(step, device_phases={"forward": 0.05}) for step in recording.steps]
    found = changes(replace(recording, steps=tuple(steps)))
    assert set(found) == {"compile", "batch_size"}
    assert "busy for 25% of it: it waits for the host" in found["compile"].reason


def test_no_larger_batch_for_a_full_device():
    assert "batch_size" not in changes(with_gpu(used=95))


def test_memory_that_nobody_looked_at_is_not_mentioned():
    system = {"machine": {"gpus": (Gpu(name="H200"),)}}
    assert "memory" not in changes(step_s=0.2, cpu_s=0.1, system=system)["batch_size"].reason


def test_what_has_a_gain_comes_before_what_is_to_be_tried():
    found = list(changes(with_gpu(phases={"forward": 0.15, "log": 0.05})).values())
    assert found[0].name == "logging"
    assert all(change.gain is None for change in found[1:])


@pytest.mark.parametrize("made", [{}, {"step_s": 0.2, "cpu_s": 0.1}, {"count": 5, "phases": {"log": 0.01}}])
def test_a_step_on_the_cpu_without_a_cause_is_left_alone(made):
    assert changes(**made) == {}
