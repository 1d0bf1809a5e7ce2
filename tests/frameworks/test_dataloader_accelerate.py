"""Accelerate trains from a `penstock.DataLoader` as from torch's: the same shares, seeds and losses, on our engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader

import penstock

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")

SAMPLES = 22
SCRIPT = str(Path(__file__).with_name("accelerated.py"))
KINDS = [TorchDataLoader, penstock.DataLoader]


def data():
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.rand(SAMPLES, 8, generator=generator), torch.arange(SAMPLES) % 7)


@pytest.fixture
def accelerator():
    """Make a new accelerator each time: Accelerate keeps its state in the class."""

    def reset():
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()

    def make(*, gradient_accumulation_steps=1, **dataloader):
        reset()
        config = accelerate.DataLoaderConfiguration(**dataloader)
        return accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=gradient_accumulation_steps, dataloader_config=config
        )

    yield make
    reset()


class Training:
    """A model, its optimizer and its loader, prepared by Accelerate."""

    def __init__(self, accelerator, kind, **settings):
        torch.manual_seed(0)
        settings = {"batch_size": 4, "shuffle": True, "num_workers": 2, **settings}
        self.accelerator = accelerator
        model = torch.nn.Linear(8, 7)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model, self.optimizer, self.loader = accelerator.prepare(model, optimizer, kind(data(), **settings))
        self.losses = []

    def train(self, batches, stop=None):
        iterator = iter(batches)
        for step, (images, labels) in enumerate(iterator, 1):
            with self.accelerator.accumulate(self.model):
                loss = torch.nn.functional.cross_entropy(self.model(images), labels)
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.losses.append(loss.item())
            if step == stop:
                return iterator  # alive: what the loader has in flight is kept until the state is saved
        return None


@pytest.mark.parametrize("settings", [{}, {"use_seedable_sampler": True}, {"gradient_accumulation_steps": 4}])
def test_two_epochs_have_the_losses_of_torchs_loader(accelerator, settings):
    losses = {}
    for kind in KINDS:
        training = Training(accelerator(**settings), kind)
        for _ in range(2):
            training.train(training.loader)
        losses[kind] = training.losses
    assert len(losses[penstock.DataLoader]) == 12
    assert losses[penstock.DataLoader] == losses[TorchDataLoader]


def test_prepare_keeps_our_engine_and_leaves_torchs_loader_alone(accelerator):
    ours, theirs = (Training(accelerator(), kind).loader for kind in reversed(KINDS))
    assert type(ours.base_dataloader) is penstock.DataLoader
    assert isinstance(ours, TorchDataLoader)
    assert type(theirs.base_dataloader) is TorchDataLoader
    skipping = accelerate.skip_first_batches(ours, 2)
    assert type(skipping.base_dataloader) is penstock.DataLoader


SHARED = [
    {"batch_size": 4, "shuffle": True},
    {"batch_size": 4, "drop_last": True},
    {"batch_sampler": BatchSampler(range(SAMPLES), 3, False)},
    {"sampler": BatchSampler(RandomSampler(range(SAMPLES)), 3, False), "batch_size": None},
]


@pytest.mark.parametrize("settings", SHARED, ids=["shuffle", "drop_last", "batch_sampler", "sampler of batches"])
@pytest.mark.parametrize("shares", [{}, {"split_batches": True}, {"even_batches": False}], ids=str)
def test_each_process_has_the_batches_that_it_has_with_torchs_loader(accelerator, settings, shares):
    if "split_batches" in shares and "batch_size" not in settings:
        settings = {"batch_sampler": BatchSampler(range(SAMPLES), 4, False)}
    if "split_batches" in shares and settings["batch_size" if "batch_size" in settings else "batch_sampler"] is None:
        pytest.skip("Accelerate refuses to split batches of an unknown size")
    accelerator()

    def batches(kind, process):
        torch.manual_seed(1)
        loader = accelerate.data_loader.prepare_data_loader(
            kind(data(), num_workers=1, **settings), num_processes=2, process_index=process, use_seedable_sampler=True,
            **shares,
        )  # fmt: skip
        return type(loader.base_dataloader), [[part.tolist() for part in batch] for batch in loader]

    for process in range(2):
        (theirs, expected), (ours, found) = (batches(kind, process) for kind in KINDS)
        assert (theirs, ours) == (TorchDataLoader, penstock.DataLoader)
        assert found == expected


@pytest.mark.parametrize("step", [2, 5])
def test_a_training_that_skips_the_first_batches_goes_on_as_with_torchs_loader(accelerator, tmp_path, step):
    losses = {}
    for kind in KINDS:
        folder = tmp_path / kind.__module__
        settings = {"use_seedable_sampler": True, "data_seed": 3}
        first = Training(accelerator(**settings), kind)
        first.train(first.loader, step)
        first.accelerator.save_state(folder)
        second = Training(accelerator(**settings), kind)
        second.accelerator.load_state(folder)
        second.train(accelerate.skip_first_batches(second.loader, step))
        losses[kind] = first.losses + second.losses
    whole = Training(accelerator(**settings), TorchDataLoader)
    whole.train(whole.loader)
    assert losses[penstock.DataLoader] == losses[TorchDataLoader] == whole.losses


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata to torch
@pytest.mark.parametrize("step", [2, 6, 8])
def test_with_use_stateful_dataloader_the_state_is_saved_and_resumes_at_the_next_batch(accelerator, tmp_path, step):
    pytest.importorskip("torchdata", reason="Accelerate wants torchdata for use_stateful_dataloader")

    def training():
        return Training(accelerator(use_stateful_dataloader=True), penstock.DataLoader)

    whole = training()
    for _ in range(2):
        whole.train(whole.loader)
    first = training()
    if step > 6:
        first.train(first.loader)
    first.train(first.loader, step - len(first.losses))
    first.accelerator.save_state(tmp_path)
    second = training()
    second.accelerator.load_state(tmp_path)
    while len(first.losses) + len(second.losses) < 12:
        second.train(second.loader)
    assert first.losses + second.losses == whole.losses


@pytest.mark.slow
def test_two_ranks_train_with_the_losses_of_torchs_loader_and_gather_every_sample_once():
    found = {}
    for kind in ("torch", "penstock"):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", SCRIPT, kind]
        environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr[-4000:]
        found[kind] = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["penstock"] == found["torch"]
    assert found["penstock"]["labels"] == [sorted(number % 7 for number in range(SAMPLES))] * 2
