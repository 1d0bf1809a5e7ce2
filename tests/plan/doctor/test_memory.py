import psutil
import pytest

from penstock.plan.doctor import machine as room
from penstock.plan.doctor.check import NOT_KNOWN, CheckStatus
from penstock.plan.doctor.machine import MemoryFacts, MemorySpace, memory_checks, read_memory
from penstock.recording.format import Machine

GB = 10**9
WELL = {
    "total_bytes": 64 * GB,
    "free_bytes": 50 * GB,
    "shm": MemorySpace(32 * GB, 0),
    "swap": MemorySpace(8 * GB, 10**6),
}


def look(**facts):
    return {check.name: check for check in memory_checks(MemoryFacts(**{**WELL, **facts}))}


def test_plenty_of_everything_is_good():
    found = look()
    assert list(found) == ["memory", "/dev/shm", "swap"]
    assert all(check.mark is CheckStatus.GOOD for check in found.values())
    assert found["memory"].value == "50 GB free of 64 GB"


def test_a_containers_limit_counts_not_the_machine():
    check = look(limit_bytes=16 * GB, free_bytes=12 * GB)["memory"]
    assert check.value == "12 GB free of 16 GB (limit; the machine has 64 GB)"
    assert "killed without a word" in check.meaning
    assert look(limit_bytes=16 * GB, free_bytes=1 * GB)["memory"].mark is CheckStatus.LOOK


@pytest.mark.parametrize(
    ("free", "mark"),
    [(64 << 20, CheckStatus.BAD), (0, CheckStatus.BAD), (500 << 20, CheckStatus.LOOK), (1 << 30, CheckStatus.GOOD)],
)
def test_shared_memory_is_judged_by_what_is_free(free, mark):
    check = look(shm=MemorySpace(4 * GB, 4 * GB - free))["/dev/shm"]
    assert check.mark is mark
    assert ("--shm-size" in check.meaning) is (mark is not CheckStatus.GOOD)


def test_swap_in_use_is_a_sign_and_none_is_no_fault():
    assert look(swap=MemorySpace(8 * GB, 4 * GB))["swap"].mark is CheckStatus.LOOK
    assert (look(swap=MemorySpace(0, 0))["swap"].value, look(swap=MemorySpace(0, 0))["swap"].mark) == (
        "none",
        CheckStatus.GOOD,
    )


def test_a_system_that_tells_nothing_gives_rows_that_say_so():
    checks = list(memory_checks(MemoryFacts()))
    assert [check.value for check in checks] == [NOT_KNOWN] * 3
    assert all(check.ok for check in checks)


def test_the_real_machine_answers(tmp_path):
    machine = Machine(memory_bytes=psutil.virtual_memory().total)
    found = read_memory(machine, shm=tmp_path)
    assert 0 < found.free_bytes <= machine.memory_bytes
    assert 0 < found.shm.free_bytes <= found.shm.total_bytes
    assert read_memory(machine, shm=tmp_path / "nowhere").shm is None


@pytest.mark.parametrize("error", [PermissionError("no"), RuntimeError("odd kernel"), psutil.AccessDenied()])
def test_who_refuses_to_answer_leaves_a_gap(monkeypatch, tmp_path, error):
    def refuse():
        raise error

    monkeypatch.setattr(room, "free_bytes", refuse)
    monkeypatch.setattr(room.psutil, "swap_memory", refuse)
    found = read_memory(Machine(memory_bytes=GB), shm=tmp_path)
    assert (found.free_bytes, found.swap) == (None, None)
    assert [check.value for check in memory_checks(found)][::2] == [NOT_KNOWN, NOT_KNOWN]
