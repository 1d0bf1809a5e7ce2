import pytest

import penstock
from penstock.recording.ranks import load_ranks
from penstock.recording.reader import load
from penstock.watcher.rank_files import own_recording, rank_and_world

ENVIRONMENTS = {
    "no launcher": ({}, (0, 1)),
    "torchrun": ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
    "slurm": ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, (3, 8)),
    "torchrun in slurm": ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (3, 8)),
    "without WORLD_SIZE": ({"RANK": "3"}, (3, 4)),
    "not a number": ({"RANK": "third", "WORLD_SIZE": "8"}, (0, 1)),
}


@pytest.fixture
def set_environment(monkeypatch):
    """Return a function that sets the variables of a launcher, and removes those of all others."""

    def set_variables(environment):
        for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(("environment", "expected"), ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_the_rank_comes_from_the_launcher_and_wrong_variables_raise_no_error(set_environment, environment, expected):
    set_environment(environment)
    assert rank_and_world() == expected


def test_ranks_with_the_same_record_path_write_one_file_each(set_environment, tmp_path):
    assert own_recording(None) is None
    record = tmp_path / "run.jsonl"
    for rank in range(3):
        set_environment({"RANK": str(rank), "WORLD_SIZE": "3"})
        with penstock.watch(range(5), record=record) as batches:
            assert list(batches) == list(range(5))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.jsonl", "run.rank1.jsonl", "run.rank2.jsonl"]
    assert [recording.run.rank for recording in load_ranks(record)] == [0, 1, 2]
    assert len(load(tmp_path / "run.rank2.jsonl").steps) == 5
