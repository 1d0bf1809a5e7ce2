"""Checks of the DataLoaders in a script against a machine."""

from dataclasses import replace

import pytest

from penstock.plan.doctor.check import CheckStatus
from penstock.plan.doctor.script import KNOWN_AT_RUN_TIME, ScriptContext, script_checks
from penstock.plan.worker_count import WorkerResources

GB = 10**9
RESOURCES = WorkerResources(cores=4.0, free_bytes=60 * GB, shared_free_bytes=30 * GB)
CONTEXT = ScriptContext(resources=RESOURCES, gpus=1, start_method="fork", worker_bytes=GB // 5)


def context_with(**resources):
    return replace(CONTEXT, resources=replace(RESOURCES, **resources))


def script_rows(tmp_path, arguments, context=CONTEXT):
    file = tmp_path / "train.py"
    file.write_text(f"DataLoader(ds, {arguments})\n")
    return {check.name.removeprefix("line 1 "): check for check in script_checks(file, context)}


def test_settings_that_fit_the_machine_are_good(tmp_path):
    found = script_rows(
        tmp_path, "batch_size=32, num_workers=4, pin_memory=True, persistent_workers=True, prefetch_factor=2"
    )
    assert list(found) == ["num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "batches held"]
    assert all(check.mark is CheckStatus.GOOD for check in found.values())
    assert found["batches held"].value == "9 batches of 32"
    assert "/dev/shm (30 GB) if a sample takes less than 104 MB" in found["batches held"].meaning


@pytest.mark.parametrize(
    ("workers", "mark"),
    [
        (0, CheckStatus.ATTENTION),
        (1, CheckStatus.GOOD),
        (4, CheckStatus.GOOD),
        (5, CheckStatus.ATTENTION),
        (16, CheckStatus.BAD),
        (-1, CheckStatus.BAD),
    ],
)
def test_workers_are_judged_by_the_cores(tmp_path, workers, mark):
    check = script_rows(tmp_path, f"num_workers={workers}")["num_workers"]
    assert (check.value, check.mark) == (str(workers), mark)


def test_32_workers_on_2_cores_are_bad_and_hold_too_much_memory(tmp_path):
    context = context_with(cores=2.0, free_bytes=8 * GB, shared_free_bytes=4 * GB)
    found = script_rows(tmp_path, "batch_size=24, num_workers=32, prefetch_factor=12, pin_memory=True", context)
    assert "32 workers share 2 cores" in found["num_workers"].meaning
    assert found["prefetch_factor"].mark is CheckStatus.ATTENTION
    assert found["batches held"].value == "385 batches of 24"
    assert found["batches held"].mark is CheckStatus.ATTENTION
    assert "free memory (8 GB, less 6.4 GB for the workers themselves)" in found["batches held"].meaning
    assert "less than 160 kB: not even a 224×224 image" in found["batches held"].meaning


def test_omitted_num_workers_shows_the_default_of_torch(tmp_path):
    check = script_rows(tmp_path, "batch_size=8")["num_workers"]
    assert (check.value, check.mark) == ("0 (default)", CheckStatus.ATTENTION)


@pytest.mark.parametrize("arguments", ["prefetch_factor=2", "persistent_workers=True"])
def test_settings_that_torch_refuses_without_workers_are_bad(tmp_path, arguments):
    name, _, _ = arguments.partition("=")
    assert script_rows(tmp_path, arguments)[name].mark is CheckStatus.BAD


def test_prefetch_factor_of_zero_is_bad(tmp_path):
    assert script_rows(tmp_path, "num_workers=2, prefetch_factor=0")["prefetch_factor"].mark is CheckStatus.BAD
    assert script_rows(tmp_path, "num_workers=2, prefetch_factor=None")["prefetch_factor"].mark is CheckStatus.GOOD


def test_pinning_is_expected_only_with_a_gpu(tmp_path):
    without = replace(CONTEXT, gpus=0)
    assert script_rows(tmp_path, "num_workers=2")["pin_memory"].mark is CheckStatus.ATTENTION
    assert script_rows(tmp_path, "num_workers=2, pin_memory=True")["pin_memory"].mark is CheckStatus.GOOD
    assert "pin_memory" not in script_rows(tmp_path, "num_workers=2", without)
    assert script_rows(tmp_path, "num_workers=2, pin_memory=True", without)["pin_memory"].mark is CheckStatus.UNKNOWN
    assert script_rows(tmp_path, "num_workers=2, pin_memory=False", without)["pin_memory"].mark is CheckStatus.GOOD


def test_restarted_workers_need_attention_where_they_are_spawned(tmp_path):
    assert script_rows(tmp_path, "num_workers=2")["persistent_workers"].mark is CheckStatus.GOOD
    check = script_rows(tmp_path, "num_workers=2", replace(CONTEXT, start_method="spawn"))["persistent_workers"]
    assert check.mark is CheckStatus.ATTENTION
    assert "by spawn" in check.meaning


def test_values_known_only_at_run_time_are_not_judged(tmp_path):
    found = script_rows(tmp_path, "**options")
    assert {check.mark for check in found.values()} == {CheckStatus.UNKNOWN}
    assert {check.meaning for check in found.values()} == {KNOWN_AT_RUN_TIME}
    assert found["num_workers"].value == "**options"


def test_name_is_shown_with_its_value(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("WORKERS = 9\nDataLoader(ds, num_workers=WORKERS)\n")
    assert next(iter(script_checks(file, CONTEXT))).value == "WORKERS = 9"


def test_unknown_memory_is_not_judged(tmp_path):
    context = context_with(free_bytes=None, shared_free_bytes=None)
    assert "batches held" not in script_rows(tmp_path, "num_workers=2, batch_size=8", context)
    assert "batches held" not in script_rows(tmp_path, "num_workers=2, batch_size=args.batch")
    assert "batches held" not in script_rows(tmp_path, "num_workers=2, batch_size=None")
    assert "batches held" not in script_rows(tmp_path, "num_workers=2, prefetch_factor=-1")
    assert (
        "free memory"
        in script_rows(tmp_path, "num_workers=2", context_with(shared_free_bytes=None))["batches held"].meaning
    )


def test_script_without_a_dataloader_refers_to_run(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("print('hello')\n")
    (check,) = script_checks(file, CONTEXT)
    assert (check.name, check.mark) == ("DataLoader", CheckStatus.UNKNOWN)
    assert "penstock run" in check.meaning


def test_broken_script_becomes_a_row(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("def broken(:\n")
    (check,) = script_checks(file, CONTEXT)
    assert (check.value, check.mark) == ("cannot be read", CheckStatus.BAD)
    assert "line 1" in check.meaning
