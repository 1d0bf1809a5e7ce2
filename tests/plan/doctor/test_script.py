from dataclasses import replace

import pytest

from penstock.plan.doctor.check import CheckStatus
from penstock.plan.doctor.script import SEEN_WHEN_RUN, MachineFacts, script_checks

GB = 10**9
HERE = MachineFacts(
    cores=4, gpus=1, start_method="fork", free_bytes=60 * GB, shm_free_bytes=30 * GB, worker_bytes=GB // 5
)


def look(tmp_path, arguments, here=HERE):
    file = tmp_path / "train.py"
    file.write_text(f"DataLoader(ds, {arguments})\n")
    return {check.name.removeprefix("line 1 "): check for check in script_checks(file, here)}


def test_settings_that_suit_the_machine_are_good(tmp_path):
    found = look(tmp_path, "batch_size=32, num_workers=4, pin_memory=True, persistent_workers=True, prefetch_factor=2")
    assert list(found) == ["num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "batches held"]
    assert all(check.mark is CheckStatus.GOOD for check in found.values())
    assert found["batches held"].value == "9 batches of 32"
    assert "/dev/shm (30 GB) if a sample takes less than 104 MB" in found["batches held"].meaning


@pytest.mark.parametrize(
    ("workers", "mark"),
    [
        (0, CheckStatus.LOOK),
        (1, CheckStatus.GOOD),
        (4, CheckStatus.GOOD),
        (5, CheckStatus.LOOK),
        (16, CheckStatus.BAD),
        (-1, CheckStatus.BAD),
    ],
)
def test_workers_are_judged_by_the_cores(tmp_path, workers, mark):
    check = look(tmp_path, f"num_workers={workers}")["num_workers"]
    assert (check.value, check.mark) == (str(workers), mark)


def test_the_reports_32_workers_on_2_cores_are_named(tmp_path):
    here = replace(HERE, cores=2, free_bytes=8 * GB, shm_free_bytes=4 * GB)
    found = look(tmp_path, "batch_size=24, num_workers=32, prefetch_factor=12, pin_memory=True", here)
    assert "32 workers share 2 cores" in found["num_workers"].meaning
    assert found["prefetch_factor"].mark is CheckStatus.LOOK
    assert found["batches held"].value == "385 batches of 24"
    assert found["batches held"].mark is CheckStatus.LOOK
    assert "free memory (8 GB, less 6.4 GB for the workers themselves)" in found["batches held"].meaning
    assert "less than 160 kB: not even a 224×224 picture" in found["batches held"].meaning


def test_left_out_workers_are_said_to_be_torchs_default(tmp_path):
    check = look(tmp_path, "batch_size=8")["num_workers"]
    assert (check.value, check.mark) == ("0 (default)", CheckStatus.LOOK)


@pytest.mark.parametrize("arguments", ["prefetch_factor=2", "persistent_workers=True"])
def test_what_torch_refuses_without_workers_is_bad(tmp_path, arguments):
    name, _, _ = arguments.partition("=")
    assert look(tmp_path, arguments)[name].mark is CheckStatus.BAD


def test_no_prefetch_at_all_is_what_torch_refuses_too(tmp_path):
    assert look(tmp_path, "num_workers=2, prefetch_factor=0")["prefetch_factor"].mark is CheckStatus.BAD
    assert look(tmp_path, "num_workers=2, prefetch_factor=None")["prefetch_factor"].mark is CheckStatus.GOOD


def test_pinning_is_wanted_where_there_is_a_gpu(tmp_path):
    without = replace(HERE, gpus=0)
    assert look(tmp_path, "num_workers=2")["pin_memory"].mark is CheckStatus.LOOK
    assert look(tmp_path, "num_workers=2, pin_memory=True")["pin_memory"].mark is CheckStatus.GOOD
    assert "pin_memory" not in look(tmp_path, "num_workers=2", without)
    assert look(tmp_path, "num_workers=2, pin_memory=True", without)["pin_memory"].mark is CheckStatus.OPEN
    assert look(tmp_path, "num_workers=2, pin_memory=False", without)["pin_memory"].mark is CheckStatus.GOOD


def test_workers_that_start_anew_are_dear_where_they_are_spawned(tmp_path):
    assert look(tmp_path, "num_workers=2")["persistent_workers"].mark is CheckStatus.GOOD
    check = look(tmp_path, "num_workers=2", replace(HERE, start_method="spawn"))["persistent_workers"]
    assert check.mark is CheckStatus.LOOK
    assert "by spawn" in check.meaning


def test_what_only_running_tells_is_left_open(tmp_path):
    found = look(tmp_path, "**options")
    assert {check.mark for check in found.values()} == {CheckStatus.OPEN}
    assert {check.meaning for check in found.values()} == {SEEN_WHEN_RUN}
    assert found["num_workers"].value == "**options"


def test_a_name_is_shown_with_what_it_stands_for(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("WORKERS = 9\nDataLoader(ds, num_workers=WORKERS)\n")
    assert next(iter(script_checks(file, HERE))).value == "WORKERS = 9"


def test_memory_that_is_not_known_is_not_judged(tmp_path):
    here = replace(HERE, free_bytes=None, shm_free_bytes=None)
    assert "batches held" not in look(tmp_path, "num_workers=2, batch_size=8", here)
    assert "batches held" not in look(tmp_path, "num_workers=2, batch_size=args.batch")
    assert "batches held" not in look(tmp_path, "num_workers=2, batch_size=None")
    assert "batches held" not in look(tmp_path, "num_workers=2, prefetch_factor=-1")
    assert "free memory" in look(tmp_path, "num_workers=2", replace(HERE, shm_free_bytes=None))["batches held"].meaning


def test_a_script_without_a_dataloader_points_at_run(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("print('hello')\n")
    (check,) = script_checks(file, HERE)
    assert (check.name, check.mark) == ("DataLoader", CheckStatus.OPEN)
    assert "penstock run" in check.meaning


def test_a_broken_script_is_a_row(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("def broken(:\n")
    (check,) = script_checks(file, HERE)
    assert (check.value, check.mark) == ("cannot be read", CheckStatus.BAD)
    assert "line 1" in check.meaning
