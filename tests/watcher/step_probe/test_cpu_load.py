import psutil
import pytest

from penstock.errors import WorkerCrash
from penstock.watcher.step_probe import cpu_load as burners
from penstock.watcher.step_probe.cpu_load import cpu_load


def children():
    return [child.pid for child in psutil.Process().children()]


def test_burners_are_there_while_the_block_lasts_and_gone_after_it():
    before = children()
    with cpu_load(2):
        ours = set(children()) - set(before)
        assert len(ours) == 2
    assert not ours & set(children())


def test_burners_go_though_the_block_fails():
    before = children()
    with pytest.raises(KeyError), cpu_load(1):
        raise KeyError
    assert children() == before


def test_a_burner_that_does_not_start_is_an_error(monkeypatch):
    before = children()
    monkeypatch.setattr(burners, "_LOAD_PROGRAM", "raise SystemExit(1)")
    with pytest.raises(WorkerCrash, match="did not start"), cpu_load(1):
        pass
    assert children() == before
