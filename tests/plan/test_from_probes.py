"""Plans from probe results whose numbers are chosen so that the limiting resource is known."""

from dataclasses import replace

import pytest

from penstock.errors import SettingError
from penstock.plan.document import plan_from_yaml, plan_to_yaml
from penstock.plan.fingerprint import fingerprint
from penstock.plan.from_probes import NO_STEP, StepFacts, plan_from_probes
from penstock.probe.results import CopyRates, DecodePoint, DecodeRates, IpcCost, ProbedValues, StepProbe, StepTime
from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.watcher.machine.facts import machine_facts

BATCH_SIZE = 8


def decode(cpu_s=0.01):
    return DecodeRates(
        points=(DecodePoint(1, 1 / cpu_s, cpu_s),),
        sample_bytes=100_000.0,
        decoded_bytes=150_000,
        samples=16,
        bad=0,
        source="a.tar",
        seconds=6.0,
    )


def curve(*points, cold=True):
    return StorageCurve(
        tuple(CurvePoint(*point) for point in points),
        100_000,
        OpenStat(10.0, 20.0, 5),
        cold,
        "direct",
        1 << 20,
        2.0,
        0.0,
    )


def ipc(batch_bytes=BATCH_SIZE * 150_000, batch_s=0.0005, main_cpu_s=0.0005):
    return IpcCost(
        batch_size=BATCH_SIZE,
        batch_bytes=batch_bytes,
        arrays=1,
        batches=100,
        batch_s=batch_s,
        main_cpu_s=main_cpu_s,
        seconds=1.0,
    )


def machine(**facts):
    return {"machine": {"usable_cores": 8, "gpus": [], "platform": "Linux x86_64", **facts}}


def plan(step=NO_STEP, profile="balanced", **probed):
    values = {"decode": decode(), "ipc": ipc(), "fingerprint": machine(), **probed}
    return plan_from_probes(ProbedValues(**values), step, profile)


def change(plan, name):
    return next((change for change in plan.changes if change.name == name), None)


def test_workers_are_proposed_for_all_cores_if_decoding_takes_longest():
    found = plan()
    assert found.source == "probes"
    assert found.samples_s == pytest.approx(BATCH_SIZE / 0.0805, rel=0.01)
    assert found.planned_samples_s == pytest.approx(8 * BATCH_SIZE / 0.081, rel=0.1)
    assert found.limits[0].name in ("cpu", "workers")
    assert 7 <= found.dataloader["num_workers"] <= 10
    assert change(found, "num_workers").now == 0


def test_one_worker_is_enough_if_the_step_takes_longest():
    found = plan(StepFacts(0.5))
    assert found.dataloader["num_workers"] == 1
    assert found.planned_samples_s == pytest.approx(BATCH_SIZE / 0.5, rel=0.02)
    assert found.limits[0].name in ("main", "step")
    assert found.most_gain == pytest.approx(0.5805 / 0.5 - 1, rel=0.01)


def test_without_a_step_a_note_says_so_and_the_largest_gain_is_unknown():
    found = plan()
    assert found.most_gain is None
    assert any("No step is known" in note for note in found.notes)
    assert not any("No step is known" in note for note in plan(StepFacts(0.1)).notes)


def test_a_step_on_the_cpu_takes_a_core_from_the_workers():
    timed = {"alone": StepTime(9, 0.04), "beside": StepTime(9, 0.06), "burners": 2, "samples": BATCH_SIZE}
    on_cpu, on_gpu = (StepFacts.probed(StepProbe(**timed, device=device)) for device in ("cpu", "cuda"))
    assert (on_cpu.step_s, on_cpu.cpu_s) == (0.04, 0.04)
    assert (on_gpu.step_s, on_gpu.cpu_s) == (0.06, 0.0)
    two_cores = {"fingerprint": machine(usable_cores=2)}
    assert plan(on_cpu, **two_cores).planned_samples_s < plan(StepFacts(0.04), **two_cores).planned_samples_s


def test_a_slow_disk_is_the_limit_and_gets_few_workers():
    found = plan(curve=curve((1, 20.0, 50.0), (4, 20.0, 50.0)))
    assert found.limits[0].name == "requests"
    assert found.planned_samples_s == pytest.approx(50.0, rel=0.05)
    assert found.dataloader["num_workers"] <= 3
    assert any("read one by one" in note for note in found.notes)


def test_num_readers_is_the_smallest_number_that_reaches_the_storages_rate():
    found = plan(curve=curve((1, 100.0, 1000.0), (4, 390.0, 4000.0), (16, 400.0, 4000.0)))
    assert found.loader == {"reading": {"num_readers": 4}}
    assert "390 MB/s" in change(found, "reading.num_readers").reason
    assert plan().loader == {}


def test_a_storage_curve_from_the_page_cache_is_ignored():
    found = plan(curve=curve((1, 1.0, 1.0), cold=False))
    assert found.planned_samples_s > 100
    assert found.loader == {}
    assert any("page cache" in note for note in found.notes)


def test_a_storage_that_was_not_measured_is_noted():
    assert any("left out (no PATH was given)" in note for note in plan(reasons={"storage": "no PATH was given"}).notes)


def test_pinned_memory_is_proposed_with_a_gpu():
    copy = CopyRates(device="cuda", batch_bytes=1, pinned_s=0.01, pageable_s=0.03, seconds=1.0)
    cheap = {"decode": decode(1e-4), "copy": copy}
    found = plan(StepFacts(0.05), fingerprint=machine(gpus=["H200"]), **cheap)
    assert found.dataloader["pin_memory"] is True
    assert found.planned_samples_s > 1.2 * BATCH_SIZE / 0.08
    assert plan(StepFacts(0.05), **cheap).dataloader["pin_memory"] is False


def test_memory_is_checked_only_on_the_machine_of_the_probes():
    here = fingerprint(machine_facts())
    huge_batches = ipc(batch_bytes=1 << 50)
    assert any("fits into memory" in note for note in plan(ipc=huge_batches, fingerprint=here).notes)
    elsewhere = plan(ipc=huge_batches)
    assert any("Memory is not checked" in note for note in elsewhere.notes)
    assert any("8 usable cores" in note for note in elsewhere.notes) or here["machine"]["usable_cores"] == 8


def test_the_memory_profile_takes_no_more_workers_than_speed():
    speed, memory = (plan(profile=profile) for profile in ("speed", "memory"))
    assert (speed.profile, memory.profile) == ("speed", "memory")
    assert memory.dataloader["num_workers"] <= speed.dataloader["num_workers"]


@pytest.mark.parametrize(
    ("probed", "message"),
    [
        ({"decode": None}, "do not say what decoding costs"),
        ({"decode": None, "reasons": {"decode": "broken shard"}}, "costs: broken shard"),
        ({"ipc": None}, "do not say what the transfer of a batch costs"),
    ],
)
def test_missing_probes_are_named(probed, message):
    with pytest.raises(SettingError, match=message):
        plan(**probed)


def test_a_step_timed_with_another_batch_size_is_refused():
    with pytest.raises(SettingError, match="Probe again with --batch-size 24"):
        plan(StepFacts(0.1, 0.0, 24))
    assert plan(StepFacts(0.1, 0.0, BATCH_SIZE)).planned_samples_s


def test_probes_without_a_fingerprint_give_a_plan_without_one():
    found = plan(fingerprint={})
    assert found.fingerprint == {}
    assert any("does not say for which machine" in note for note in found.notes)


def test_a_plan_from_probes_can_be_written_and_read():
    found = plan(StepFacts(0.02), curve=curve((1, 100.0, 1000.0), (4, 390.0, 4000.0)))
    assert plan_from_yaml(plan_to_yaml(found).encode()) == found


@pytest.mark.parametrize(
    ("points", "bound"),
    [
        (((1, 20.0, 10.0), (4, 80.0, 40.0), (16, 300.0, 150.0)), "Latency-bound"),
        (((1, 20.0, 10.0), (4, 80.0, 40.0), (16, 80.0, 40.0)), "Bandwidth-bound"),
    ],
)
def test_a_note_says_whether_an_object_store_is_bound_by_latency_or_bandwidth(points, bound):
    found = plan(curve=replace(curve(*points), method="requests"))
    assert any(note.startswith(f"The store: {bound}") for note in found.notes)
    assert found.loader["reading"]["num_readers"] == (16 if bound == "Latency-bound" else 4)
