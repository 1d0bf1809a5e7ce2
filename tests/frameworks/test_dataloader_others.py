"""MMEngine trains from a `penstock.DataLoader`; and what timm does with a DataLoader works with it.

timm needs torchvision, which does not exist for machines without a GPU, so its calls are repeated here: it reads
`torch.utils.data.DataLoader` when it makes a loader, passes a collate_fn and a worker_init_fn that checks the worker's
number and reads its seed, and has a subclass with an endless batch sampler and one iterator for all epochs.
"""

from functools import partial

import numpy as np
import pytest
import torch
import torch.utils.data
from torch import nn

import penstock

TORCH_LOADER = torch.utils.data.DataLoader
KINDS = {"torch": TORCH_LOADER, "penstock": penstock.DataLoader}
SAMPLES = 22


class Images(torch.utils.data.Dataset):
    """Samples as timm's datasets give them: a uint8 array in a tuple with its label."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return np.full((3, 4, 4), index, np.uint8), index % 7


def fast_collate(samples):
    images = torch.zeros((len(samples), *samples[0][0].shape), dtype=torch.uint8)
    for number, (image, _) in enumerate(samples):
        images[number] += torch.from_numpy(image)
    return images, torch.tensor([label for _, label in samples])


def worker_init(number, seeding):
    info = torch.utils.data.get_worker_info()
    assert info.id == number
    if seeding == "all":
        np.random.seed(info.seed % (2**32 - 1))


def create_loader(**settings):
    """Make a loader as timm's `create_loader` does for a training."""
    return torch.utils.data.DataLoader(
        Images(), batch_size=4, shuffle=True, num_workers=2, sampler=None, collate_fn=fast_collate, pin_memory=False,
        drop_last=True, worker_init_fn=partial(worker_init, seeding="all"), persistent_workers=True, **settings,
    )  # fmt: skip


def test_a_loader_that_timm_makes_runs_on_our_engine_and_has_the_batches_of_torchs(monkeypatch):
    batches = {}
    for name, kind in KINDS.items():
        monkeypatch.setattr(torch.utils.data, "DataLoader", kind)
        torch.manual_seed(5)
        loader = create_loader()
        assert type(loader) is kind
        batches[name] = [[(images.tolist(), labels.tolist()) for images, labels in loader] for _ in range(2)]
        assert len(loader) == len(batches[name][0]) == 5
    assert batches["penstock"] == batches["torch"]


class Endless:
    """A batch sampler that begins again when it ends."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


def test_a_subclass_may_replace_the_batch_sampler_by_an_endless_one_and_keep_one_iterator():
    class OneIterator(penstock.DataLoader):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            self._DataLoader__initialized = False
            self.batch_sampler = Endless(self.batch_sampler)
            self._DataLoader__initialized = True
            self.iterator = super().__iter__()

        def __len__(self):
            return len(self.batch_sampler.sampler)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

    loader = OneIterator(Images(), batch_size=4, shuffle=True, num_workers=2)
    for _ in range(2):
        labels = [image[0, 0, 0].item() for images, _ in loader for image in images]
        assert sorted(labels) == list(range(SAMPLES))
    del loader.iterator


# -- MMEngine ------------------------------------------------------------------------------------------------------


def train_by_mmengine(folder, kind, max_epochs=2, **settings):
    """Train with MMEngine's Runner and its own sampler, and return the losses by step."""
    pytest.importorskip("mmengine", reason="MMEngine is not installed")
    from mmengine.dataset import DefaultSampler
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    losses = []

    class Model(BaseModel):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(48, 7)

        def forward(self, images, labels, mode="loss"):
            loss = nn.functional.cross_entropy(self.layer(images.flatten(1) / 255), labels)
            losses.append(loss.item())
            return {"loss": loss}

    data = KINDS[kind](
        Images(), batch_size=4, sampler=DefaultSampler(Images(), shuffle=True, seed=3), num_workers=2,
        collate_fn=fast_collate, persistent_workers=True,
    )  # fmt: skip
    runner = Runner(
        model=Model(), work_dir=str(folder), train_dataloader=data,
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}},
        train_cfg={"by_epoch": True, "max_epochs": max_epochs}, experiment_name=f"{kind}{len(settings)}",
        log_level="ERROR", **settings,
    )  # fmt: skip
    runner.train()
    assert type(runner.train_dataloader) is KINDS[kind]
    return losses


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of an older MMEngine to a newer torch
def test_mmengine_trains_with_the_losses_of_torchs_loader(tmp_path):
    losses = {kind: train_by_mmengine(tmp_path / kind, kind) for kind in KINDS}
    assert len(losses["penstock"]) == 12
    assert losses["penstock"] == losses["torch"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mmengine_resumes_at_an_epoch_as_with_torchs_loader(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # MMEngine 0.10 loads its checkpoints without
    losses = {}
    for kind in KINDS:
        folder = tmp_path / kind
        done = train_by_mmengine(folder, kind, max_epochs=1)
        losses[kind] = done + train_by_mmengine(folder, kind, max_epochs=2, resume=True)
    assert losses["penstock"] == losses["torch"]
