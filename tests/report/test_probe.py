import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from penstock.plan.doctor.check import CheckStatus
from penstock.probe.results import (
    CopyRates,
    DecodePoint,
    DecodeRates,
    IpcCost,
    Probes,
    ScriptProbe,
    SkippedProbe,
    StepTime,
    StorageProbe,
)
from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.report.probe import probe_rows, script_probe_text
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


def test_rows_are_in_the_order_of_the_data_flow():
    names = list(rows(storage=STORAGE, decode=DECODE, ipc=IPC, copy=COPY))
    places = [names.index(name) for name in ("sequential", "decode, 1 worker", "ipc", "copy, pinned")]
    assert places == sorted(places)
    assert all(check.meaning.endswith(".") for check in rows(decode=DECODE, ipc=IPC, copy=COPY).values())


def test_decoding_shows_the_cost_per_sample_and_the_scaling():
    found = rows(decode=DECODE)
    assert found["decode, 1 worker"].value == "500 samples/s"
    assert found["decode, 1 worker"].meaning.startswith("2 ms of a core for a sample of 112 kB (151 kB decoded)")
    assert "keeps 98% of its speed: every worker has a core of its own" in found["decode, 2 workers"].meaning
    assert found["decode, 2 workers"].mark is CheckStatus.GOOD
    assert "keeps 50% of its speed: cores share" in found["decode, 4 workers"].meaning
    assert found["decode, 4 workers"].mark is CheckStatus.ATTENTION


def test_cores_used_by_others_are_distinguished_from_shared_resources():
    busy = replace(DECODE, points=(DecodePoint(1, 180.0, 0.002), DecodePoint(2, 200.0, 0.002)))
    found = rows(decode=busy)
    assert "2 ms of a core for a sample, but each worker got only 36% of a core" in found["decode, 1 worker"].meaning
    assert "only 20% of a core: another program computes here" in found["decode, 2 workers"].meaning
    assert {check.mark for check in found.values()} == {CheckStatus.ATTENTION}


def test_scaling_is_shown_as_at_most_100_percent():
    superlinear = replace(DECODE, points=(DecodePoint(1, 500.0, 0.002), DecodePoint(2, 1100.0, 0.0018)))
    assert "keeps 100%" in rows(decode=superlinear)["decode, 2 workers"].meaning


def test_bad_samples_have_a_row():
    check = rows(decode=replace(DECODE, bad=2))["decode, bad"]
    assert (check.value, check.mark) == ("2 of 18", CheckStatus.ATTENTION)


def test_ipc_limits_one_worker_and_the_loop():
    found = rows(ipc=IPC)
    assert found["ipc"].value == "4 ms a batch"
    assert "at most 8,000 samples/s in batches of 32 samples (4.82 MB)" in found["ipc"].meaning
    assert "at most 160,000 samples/s" in found["ipc, loop"].meaning
    assert "ipc, loop" not in rows(ipc=replace(IPC, main_cpu_s=0.0))


@pytest.mark.parametrize(("pageable_s", "words"), [(0.003, "3.0 times as fast."), (0.0011, "the step waits for it.")])
def test_copies_show_what_pinning_gives(pageable_s, words):
    found = rows(copy=replace(COPY, pageable_s=pageable_s))
    assert found["copy, pinned"].value == "55 GB/s"
    assert found["copy, pageable"].meaning.endswith(words)


def test_a_skipped_probe_has_a_row_with_its_reason_and_one_not_requested_has_none():
    found = rows(copy=SkippedProbe("torch sees no CUDA device"))
    assert list(found) == ["copy"]
    assert (found["copy"].value, found["copy"].meaning) == ("skipped", "torch sees no CUDA device")
    assert found["copy"].ok


# -- the step of a script ---------------------------------------------------------------------------------------------


WHOLE = {"alone": StepTime(80, 0.1), "beside": StepTime(64, 0.125), "burners": 4, "samples": 16}


def text(**found):
    out = io.StringIO()
    Console(file=out, width=100).print(script_probe_text(ScriptProbe(**found)))
    return " ".join(out.getvalue().split())


def test_each_measurement_has_a_row_and_conclusions_follow():
    shown = text(data=StepTime(20, 0.4), **WHOLE)
    assert "with its own data 2.5 40 400 ms 20" in shown
    assert "alone 10 160 100 ms 80" in shown
    assert "beside 4 busy processes 8 128 125 ms 64" in shown
    assert "With any loader at most 10 steps/s, and 8 while workers keep the cores busy." in shown
    assert "With its own data a step takes 3.2 times as long" in shown


def test_a_script_that_does_not_wait_is_limited_by_its_step():
    assert "the step itself limits the rate" in text(data=StepTime(20, 0.101), **WHOLE)
    assert "the step itself limits the rate" in text(data=StepTime(20, 0.09), **WHOLE)


def test_times_between_those_alone_and_beside_busy_processes_are_inconclusive():
    assert "this cannot show: use `penstock run`" in text(data=StepTime(20, 0.12), **WHOLE)
    assert "this cannot show" in text(data=StepTime(20, 0.126), **WHOLE)


@pytest.mark.parametrize(("found", "why"), [({}, "the script ended before"), ({"why": "a \x1b[31m"}, r"a \x1b[31m")])
def test_missing_measurements_are_reported(found, why):
    shown = text(**found)
    assert f"Not all was measured: {why}." in shown
    assert "was not measured over a whole round" in shown


def test_an_unknown_number_of_samples_is_a_dash():
    assert "alone 10 – 100 ms 80" in text(**{**WHOLE, "samples": None})
