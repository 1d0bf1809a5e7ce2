import psutil
import pytest

from penstock.errors import WorkerCrash
from penstock.watcher.step_probe import cpu_load as cpu_load_module
from penstock.watcher.step_probe.cpu_load import cpu_load


def child_pids():
    return [child.pid for child in psutil.Process().children()]


def test_the_load_processes_run_inside_the_block_and_are_gone_after_it():
    before = child_pids()
    with cpu_load(2):
        started = set(child_pids()) - set(before)
        assert len(started) == 2
    assert not started & set(child_pids())


def test_the_load_processes_are_stopped_when_the_block_raises():
    before = child_pids()
    with pytest.raises(KeyError), cpu_load(1):
        raise KeyError
    assert child_pids() == before


def test_a_load_process_that_does_not_start_is_an_error(monkeypatch):
    before = child_pids()
    monkeypatch.setattr(cpu_load_module, "_LOAD_PROGRAM", "raise SystemExit(1)")
    with pytest.raises(WorkerCrash, match="did not start"), cpu_load(1):
        pass
    assert child_pids() == before
