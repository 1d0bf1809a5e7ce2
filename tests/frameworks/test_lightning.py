"""PyTorch Lightning trains from a Loader."""

import pytest
import torch
from tests.support.loader_helpers import keys_of

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),  # Lightning to torch
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
]


class Module(pl.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.seen = []

    def training_step(self, batch, _):
        self.seen.append(batch["__key__"])
        return self.model(batch["image"], batch["labels"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Validated(Module):
    def __init__(self, model):
        super().__init__(model)
        self.validated = []

    def validation_step(self, batch, _):
        self.validated.append(batch)


@pytest.fixture
def trainer(tmp_path):
    def make(**settings):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        settings = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "enable_checkpointing": False, **settings}
        return pl.Trainer(default_root_dir=tmp_path, **quiet, **settings)

    return make


def test_each_epoch_has_every_sample_once_in_a_new_order(loader, trainer, model, epochs):
    module = Module(model)
    trainer().fit(module, loader())
    assert module.seen == epochs[0] + epochs[1]
    for epoch in (module.seen[:6], module.seen[6:]):
        assert len({key for keys in epoch for key in keys}) == sum(map(len, epoch)) == 22


def test_workers_live_from_epoch_to_epoch(loader, trainer, model):
    engines = []

    class RecordEngine(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            engines.append(trainer.train_dataloader._engine)

    trainer(callbacks=[RecordEngine()]).fit(Module(model), loader())
    assert len(engines) == 12
    assert len(set(map(id, engines))) == 1


def test_validation_uses_its_own_loader_between_the_epochs(loader, trainer, model, epochs):
    module = Validated(model)
    trainer(num_sanity_val_steps=1).fit(module, loader(), loader(shuffle=False, executor="thread"))
    assert module.seen == epochs[0] + epochs[1]
    validated = keys_of(module.validated[1:])
    assert validated[:22] == validated[22:]
    assert sorted(validated[:22]) == sorted(key for keys in epochs[0] for key in keys)


def test_an_epoch_that_is_cut_short_is_followed_by_the_next(loader, trainer, model, epochs):
    module = Module(model)
    trainer(limit_train_batches=2, max_epochs=3).fit(module, loader())
    assert module.seen == [batch for epoch in epochs for batch in epoch[:2]]


@pytest.mark.parametrize("step", [2, 6, 9])  # in the middle of an epoch, at its end, in the middle of the next one
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_checkpoint_resumes_at_the_next_batch(loader, trainer, model, epochs, tmp_path, step):
    def train(ckpt_path=None, **settings):
        keep = pl.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=step, save_top_k=-1)
        module = Module(model)
        trainer(enable_checkpointing=True, callbacks=[keep], **settings).fit(module, loader(), ckpt_path=ckpt_path)
        return module.seen

    assert train(max_epochs=-1, max_steps=step) + train(tmp_path / f"step={step}.ckpt") == epochs[0] + epochs[1]


def test_overfitting_repeats_the_same_batches(loader, trainer, model):
    module = Module(model)
    plain = loader(shuffle=False, executor="thread")
    trainer(overfit_batches=2).fit(module, plain)
    assert module.seen[:2] == module.seen[2:]
