"""Which process of a training this is, and which recording is its own."""

import pytest

import penstock
from penstock.recording.ranks import load_ranks
from penstock.recording.reader import load
from penstock.watcher.rank_files import own_recording, rank_and_world

ENVIRONMENTS = {
    "nobody": ({}, (0, 1)),
    "torchrun": ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
    "slurm": ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, (3, 8)),
    "torchrun in slurm": ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (3, 8)),
    "half of it": ({"RANK": "3"}, (3, 4)),
    "nonsense": ({"RANK": "third", "WORLD_SIZE": "8"}, (0, 1)),
}


@pytest.fixture
def launch(monkeypatch):
    def say(environment):
        for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return say


@pytest.mark.parametrize(("environment", "found"), ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_launchers_are_understood_and_nonsense_keeps_nobody_from_training(launch, environment, found):
    launch(environment)
    assert rank_and_world() == found


def test_ranks_that_ask_for_one_file_have_one_each(launch, tmp_path):
    assert own_recording(None) is None
    record = tmp_path / "run.jsonl"
    for rank in range(3):
        launch({"RANK": str(rank), "WORLD_SIZE": "3"})
        with penstock.watch(range(5), record=record) as batches:
            assert list(batches) == list(range(5))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.jsonl", "run.rank1.jsonl", "run.rank2.jsonl"]
    assert [recording.run.rank for recording in load_ranks(record)] == [0, 1, 2]
    assert len(load(tmp_path / "run.rank2.jsonl").steps) == 5
