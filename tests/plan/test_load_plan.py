import pytest

from penstock.core.plan import Plan
from penstock.plan.document import dataloader_kwargs, load_plan_for_this_machine, loader_settings, save_plan
from penstock.plan.fingerprint import fingerprint
from penstock.watcher.machine.facts import machine_facts
from penstock.watcher.script.apply_plan import LimitThreads


@pytest.fixture
def write(tmp_path):
    def write(machine=None, **sections):
        found = fingerprint(machine_facts()) if machine is None else {"machine": machine}
        save_plan(Plan(source="recording", fingerprint=found, **sections), tmp_path / "plan.yaml")
        return tmp_path / "plan.yaml"

    return write


def started(worker):
    return worker


def test_settings_are_a_dataloaders_own(write, caplog):
    torch = pytest.importorskip("torch")
    path = write(dataloader={"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "pin_memory": False})
    loader = torch.utils.data.DataLoader([1, 2, 3], batch_size=2, **dataloader_kwargs(path))
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    assert caplog.messages == []


def test_a_limit_of_threads_is_set_at_the_workers_start_after_the_users_own(write):
    path = write(dataloader={"num_workers": 1, "worker_threads": 1})
    kwargs = dataloader_kwargs(path, worker_init_fn=started)
    assert kwargs.keys() == {"num_workers", "worker_init_fn"}
    limit = kwargs["worker_init_fn"]
    assert isinstance(limit, LimitThreads)
    assert (limit.threads, limit.init_fn) == (1, started)


def test_without_a_limit_the_users_own_is_left_as_it_is(write):
    path = write(dataloader={"num_workers": 1})
    assert dataloader_kwargs(path, worker_init_fn=started) == {"num_workers": 1, "worker_init_fn": started}
    assert dataloader_kwargs(path) == {"num_workers": 1}


def test_another_machines_plan_is_explained_and_used(write, caplog):
    path = write({"usable_cores": 10**6}, dataloader={"num_workers": 1}, loader={"reading": {"num_readers": 2}})
    assert dataloader_kwargs(path) == {"num_workers": 1}
    assert "counts on 1000000 usable cores" in caplog.text
    assert loader_settings(path) == {"reading": {"num_readers": 2}}


def test_a_plan_that_does_not_say_for_which_machine_it_is_says_that(write, caplog):
    assert load_plan_for_this_machine(write({}, loader={"reading": {"num_readers": 2}})).loader == {
        "reading": {"num_readers": 2}
    }
    assert "does not say for which machine" in caplog.text
