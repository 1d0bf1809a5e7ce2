from dataclasses import replace
from pathlib import Path

import pytest

from penstock.plan.doctor.check import CheckStatus
from penstock.probe.results import CopyRates, DecodePoint, DecodeRates, IpcCost, Probes, SkippedProbe, StorageProbe
from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.report.probes import probe_rows
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import StorageFacts

DECODE = DecodeRates(
    points=(DecodePoint(1, 500.0, 0.002), DecodePoint(2, 980.0, 0.00204), DecodePoint(4, 1000.0, 0.004)),
    sample_bytes=112_000.0,
    decoded_bytes=150_528,
    samples=16,
    bad=0,
    source="a.tar",
    seconds=6.0,
)
IPC = IpcCost(
    batch_size=32, batch_bytes=4_816_896, arrays=1, batches=500, batch_s=0.004, main_cpu_s=0.0002, seconds=3.0
)
COPY = CopyRates(device="H200", batch_bytes=55_000_000, pinned_s=0.001, pageable_s=0.003, seconds=2.0)
STORAGE = StorageProbe(
    StorageFacts(Path("/d"), "/d", "ext4", "/dev/x", "8:0", StorageKind.NVME, None, ("x",), False),
    StorageCurve((CurvePoint(1, 1500, 2000),), 500_000, OpenStat(4.0, 9.0, 100), True, "direct", 1 << 28, 5.0, 0.0),
)


def rows(**probes):
    return {check.name: check for check in probe_rows(Probes(**probes))}


def test_all_probes_have_their_rows_in_the_order_of_the_data():
    names = list(rows(storage=STORAGE, decode=DECODE, ipc=IPC, copy=COPY))
    places = [names.index(name) for name in ("sequential", "decode, 1 worker", "ipc", "copy, pinned")]
    assert places == sorted(places)
    assert all(check.meaning.endswith(".") for check in rows(decode=DECODE, ipc=IPC, copy=COPY).values())


def test_decoding_is_told_per_core_and_by_how_workers_scale():
    found = rows(decode=DECODE)
    assert found["decode, 1 worker"].value == "500 samples/s"
    assert found["decode, 1 worker"].meaning.startswith("2 ms of a core for a sample of 112 kB (151 kB decoded)")
    assert "keeps 98% of its speed: the cores are really there" in found["decode, 2 workers"].meaning
    assert found["decode, 2 workers"].mark is CheckStatus.GOOD
    assert "keeps 50% of its speed: cores share" in found["decode, 4 workers"].meaning
    assert found["decode, 4 workers"].mark is CheckStatus.ATTENTION


def test_cores_that_others_use_are_told_from_cores_that_share():
    busy = replace(DECODE, points=(DecodePoint(1, 180.0, 0.002), DecodePoint(2, 200.0, 0.002)))
    found = rows(decode=busy)
    assert "2 ms of a core for a sample, but each worker got only 36% of a core" in found["decode, 1 worker"].meaning
    assert "only 20% of a core: somebody else computes here" in found["decode, 2 workers"].meaning
    assert {check.mark for check in found.values()} == {CheckStatus.ATTENTION}


def test_better_than_perfect_scaling_is_not_more_than_all():
    lucky = replace(DECODE, points=(DecodePoint(1, 500.0, 0.002), DecodePoint(2, 1100.0, 0.0018)))
    assert "keeps 100%" in rows(decode=lucky)["decode, 2 workers"].meaning


def test_bad_samples_are_said():
    check = rows(decode=replace(DECODE, bad=2))["decode, bad"]
    assert (check.value, check.mark) == ("2 of 18", CheckStatus.ATTENTION)


def test_the_hand_over_bounds_one_worker_and_the_loop():
    found = rows(ipc=IPC)
    assert found["ipc"].value == "4 ms a batch"
    assert "at most 8,000 samples/s in batches of 32 samples (4.82 MB)" in found["ipc"].meaning
    assert "at most 160,000 samples/s" in found["ipc, loop"].meaning
    assert "ipc, loop" not in rows(ipc=replace(IPC, main_cpu_s=0.0))


@pytest.mark.parametrize(("pageable_s", "words"), [(0.003, "3.0 times as fast."), (0.0011, "the step waits for it.")])
def test_copies_say_what_pinning_gives(pageable_s, words):
    found = rows(copy=replace(COPY, pageable_s=pageable_s))
    assert found["copy, pinned"].value == "55 GB/s"
    assert found["copy, pageable"].meaning.endswith(words)


def test_what_was_skipped_has_its_reason_and_what_was_not_asked_for_no_row():
    found = rows(copy=SkippedProbe("torch sees no CUDA device"))
    assert list(found) == ["copy"]
    assert (found["copy"].value, found["copy"].meaning) == ("skipped", "torch sees no CUDA device")
    assert found["copy"].ok
