"""A map-style dataset on the engine: bad samples, workers that die, scripts and what cannot be pickled."""

import json
import subprocess
import sys
import textwrap

import pytest

from penstock.errors import SampleError, SettingError, WorkerCrash


@pytest.fixture
def loader(dataset_loader):
    return dataset_loader


def labels(batches):
    return [batch["label"][0].tolist() for batch in batches]


# -- bad samples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_bad_sample_is_raised_with_dataset_index_and_traceback(loader, data, executor):
    with pytest.raises(SampleError, match="ValueError: no image 9") as caught:
        labels(loader(data.Images(bad=[9]), executor=executor))
    assert caught.value.where() == {"shard": "Images", "member": "9", "stage": "dataset"}
    assert "in __getitem__" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("on_error", "third"),
    [("skip", [8, 10, 11]), ("replace", [8, 10, 10, 11])],
)
def test_bad_samples_are_left_out_or_replaced_and_listed(loader, data, tmp_path, on_error, third):
    bad_samples = tmp_path / "bad.jsonl"
    tolerant = loader(data.Images(bad=[9]), on_error=on_error, bad_samples_path=str(bad_samples))
    batches = list(tolerant)
    assert batches[2]["label"][0].tolist() == third
    assert list(batches[2]["label"][1]) == [f"name {index}" for index in third]
    (line,) = map(json.loads, bad_samples.read_text().splitlines())
    assert (line["shard"], line["member"], line["reason"]) == ("Images", "9", "ValueError: no image 9")


def test_a_sample_that_kills_workers_is_named(loader, data):
    with pytest.raises(WorkerCrash, match="this sample kills the worker") as caught:
        labels(loader(data.Images(killers=[9]), executor="process"))
    assert caught.value.member == "9"


# -- scripts, and datasets that cannot be pickled --------------------------------------------------------------


def test_a_dataset_defined_in_a_script_runs_in_worker_processes(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import torch, penstock

            class Squares(torch.utils.data.Dataset):
                def __len__(self):
                    return 10

                def __getitem__(self, index):
                    return torch.tensor(index * index), f"square of {index}"

            if __name__ == "__main__":
                loader = penstock.Loader(Squares(), batch_size=4, num_workers=2,
                                         engine=penstock.EngineOptions("process"))
                for squares, names in loader:
                    print(squares.tolist(), names[0])
                loader.close()
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [
        "[0, 1, 4, 9] square of 0",
        "[16, 25, 36, 49] square of 4",
        "[64, 81] square of 8",
    ], done.stderr


def test_a_script_without_a_main_guard_is_an_error_with_advice(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import penstock

            class Numbers:
                def __len__(self):
                    return 10

                def __getitem__(self, index):
                    return index

            engine = penstock.EngineOptions("process")
            for batch in penstock.Loader(Numbers(), batch_size=4, num_workers=1, engine=engine):
                pass
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert 'under `if __name__ == "__main__":`' in done.stderr
    assert "WorkerCrash" in done.stderr.splitlines()[-1]


def test_a_dataset_that_cannot_be_pickled_runs_in_threads_only(loader):
    class Local:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

    with pytest.raises(SettingError, match="cannot be sent to worker processes") as caught:
        list(loader(Local(), executor="process"))
    assert "executor='thread'" in caught.value.advice
    assert [batch.tolist() for batch in loader(Local())] == [[0, 1, 2, 3]]


def test_a_collate_fn_that_cannot_be_pickled_is_refused_with_advice(loader, data):
    with pytest.raises(SettingError, match="cannot be sent to worker processes") as caught:
        list(loader(data.Images(), collate_fn=lambda batch: batch, executor="process"))
    assert "executor='thread'" in caught.value.advice
