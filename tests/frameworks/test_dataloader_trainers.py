"""Lightning, Fabric and HF's Trainer train from a `penstock.DataLoader`: the losses are those of torch's loader."""

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import penstock

KINDS = {"torch": TorchDataLoader, "penstock": penstock.DataLoader}
SAMPLES = 22

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),  # Lightning to torch
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


class Samples(torch.utils.data.Dataset):
    """Samples that may be augmented by torch's global generator, as torchvision's transforms do.

    Torch's loader gives each worker a random sequence of its own, ours each sample; so augmented samples differ.
    """

    def __init__(self, augmented=0.0):
        self.augmented = augmented

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.rand(8, generator=generator) + self.augmented * torch.rand(8), "labels": index % 7}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 7)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x), labels)}


def loader(kind, augmented=0.0, **settings):
    return KINDS[kind](Samples(augmented), batch_size=4, shuffle=True, **{"num_workers": 2, **settings})


# -- Lightning -----------------------------------------------------------------------------------------------------


def lightning():
    return pytest.importorskip("lightning", reason="Lightning is not installed")


def fit(folder, data, max_steps, every=None, ckpt_path=None):
    """Train a module with Lightning, and return the losses by step."""
    pl = lightning().pytorch

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()
            self.losses = []

        def training_step(self, batch, _):
            loss = self.model(**batch)["loss"]
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callbacks = [] if every is None else [pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=every)]
    module = Module()
    pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=-1, max_steps=max_steps, callbacks=callbacks, logger=False,
        enable_checkpointing=every is not None, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
    ).fit(module, data, ckpt_path=ckpt_path)  # fmt: skip
    return module.losses


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"persistent_workers": True}, {"num_workers": 0}], ids=str)
def test_lightning_trains_with_the_losses_of_torchs_loader(tmp_path, settings):
    losses = {}
    for kind in KINDS:
        lightning().seed_everything(7, verbose=False)
        losses[kind] = fit(tmp_path, loader(kind, **settings), 12)
    assert len(losses["penstock"]) == 12
    assert losses["penstock"] == losses["torch"]


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 6, 9])  # in the middle of an epoch, at its end, in the middle of the next one
def test_lightning_resumes_at_the_next_batch_of_the_same_epoch(tmp_path, step):
    generator = torch.Generator().manual_seed(3)

    def train(*arguments, **settings):
        torch.manual_seed(7)
        return fit(tmp_path, loader("penstock", 0.1, generator=generator.manual_seed(3)), *arguments, **settings)

    whole = train(12)
    done = train(step, step)
    assert done == whole[:step]
    assert train(12, step, ckpt_path=tmp_path / f"step={step}.ckpt") == whole[step:]


# -- Fabric --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fabric_trains_with_the_losses_of_torchs_loader_and_resumes(tmp_path):
    def training(kind):
        lightning().seed_everything(7, verbose=False)
        fabric = lightning().Fabric(accelerator="cpu", devices=1)
        model = Model()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        data = loader(kind, generator=torch.Generator().manual_seed(3))
        return fabric, model, optimizer, data, fabric.setup_dataloaders(data)

    def train(fabric, model, optimizer, batches):
        losses = []
        for batch in batches:
            loss = model(**batch)["loss"]
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    losses = {}
    for kind in KINDS:
        fabric, model, optimizer, _, batches = training(kind)
        losses[kind] = train(fabric, model, optimizer, batches) + train(fabric, model, optimizer, batches)
    assert losses["penstock"] == losses["torch"]
    fabric, model, optimizer, data, batches = training("penstock")
    iterator = iter(batches)
    done = train(fabric, model, optimizer, [next(iterator) for _ in range(2)])
    fabric.save(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer, "loader": data})
    fabric, model, optimizer, data, batches = training("penstock")
    fabric.load(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer, "loader": data})
    assert done + train(fabric, model, optimizer, batches) == losses["torch"][:6]


# -- HF Trainer ----------------------------------------------------------------------------------------------------


def train_by_hf(folder, kind, max_steps=12, resume=None, **settings):
    """Train with HF's Trainer over a loader of that kind, and return the losses by step."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    losses = []

    class Recorded(Model):
        def forward(self, x, labels):
            found = super().forward(x, labels)
            losses.append(found["loss"].item())
            return found

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            generator = torch.Generator().manual_seed(5)
            return self.accelerator.prepare(loader(kind, generator=generator))

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=max_steps, learning_rate=0.1, per_device_train_batch_size=4, use_cpu=True,
        report_to="none", disable_tqdm=True, logging_strategy="no", seed=7, lr_scheduler_type="constant",
        **{"save_strategy": "no", **settings},
    )  # fmt: skip
    transformers.set_seed(7)
    trainer = Trainer(model=Recorded(), args=arguments, train_dataset=Samples())
    trainer.train(resume_from_checkpoint=resume)
    used = trainer.callback_handler.train_dataloader
    assert type(used.base_dataloader) is KINDS[kind]
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 4, "max_steps": 4}], ids=str)
def test_hf_trainer_has_the_losses_of_torchs_loader(tmp_path, settings):
    losses = {kind: train_by_hf(tmp_path, kind, **settings) for kind in KINDS}
    assert len(losses["penstock"]) == 12
    assert losses["penstock"] == losses["torch"]


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 9])
def test_hf_trainer_resumes_as_with_torchs_loader(tmp_path, step):
    losses = {}
    for kind in KINDS:
        folder = tmp_path / kind
        done = train_by_hf(folder, kind, step, save_strategy="steps", save_steps=step)
        losses[kind] = done + train_by_hf(folder, kind, resume=str(folder / f"checkpoint-{step}"))
    assert losses["penstock"] == losses["torch"]
    assert len(losses["torch"]) == 12
