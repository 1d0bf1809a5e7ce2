"""The helpers in the training loops of frameworks: each trains to the same weights as a plain PyTorch loop."""

import pytest
import torch
from tests.support.metadata_tables import random_table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from penstock.samplers import PKSampler
from penstock.train import Every, GradClip, Metrics, Prefetcher, accumulate, precision, scale_lr, to_device

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),  # caused by Lightning
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]
TABLE = random_table(identities=12, samples=144)
IDENTITIES = 12
EPOCHS = 2
MAX_NORM = 0.05
"""A bound so low that every step is clipped."""


class Net(nn.Module):
    """A model as HF expects it: called with the entries of a batch, it returns a dict with the loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.classifier = nn.Linear(6, IDENTITIES)

    def forward(self, image, identity):
        return {"loss": nn.functional.cross_entropy(self.classifier(image), identity)}


def named(samples):
    images, identities = zip(*samples, strict=True)
    return {"image": torch.stack(images), "identity": torch.stack(identities)}


def batches():
    """Return P×K batches of a torch DataLoader."""
    images = torch.randn(len(TABLE), 6, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(images, torch.from_numpy(TABLE.column("identity").data))
    return DataLoader(dataset, batch_sampler=PKSampler(TABLE, 4, 3, seed=5), collate_fn=named)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def plain():
    """Return the weights and losses of a loop that uses no helper but the sampler."""
    model, losses = Net(), []
    optimizer, loader = optimizer_of(model), batches()
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1 + (step + 1) / 10, 2.0))
    for _ in range(EPOCHS):
        for batch in loader:
            loss = model(**batch)["loss"]
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return model.state_dict(), losses


def check(model, clip, metrics, plain):
    weights, losses = plain
    for name, value in model.state_dict().items():
        assert torch.allclose(value, weights[name], atol=1e-6), name
    assert metrics.means()["loss"] == pytest.approx(sum(losses) / len(losses))
    assert len(clip.recorded) == len(losses) / 2
    assert all(norm > MAX_NORM for _, norm in clip.recorded)


@pytest.fixture
def clip():
    return GradClip(MAX_NORM, every=2)


def test_in_a_plain_loop(plain, clip):
    model, metrics = Net(), Metrics()
    optimizer, amp = optimizer_of(model), precision(model, "fp32")
    rates = scale_lr(optimizer, 12, 24, warm_up_steps=10)
    loader = Prefetcher(batches(), "cpu")
    for _ in range(EPOCHS):
        for batch, micro in accumulate(loader, 1, model):
            with micro, amp.autocast():
                loss = model(**batch)["loss"]
                amp.backward(loss)
            metrics.add(loss=loss)
            amp.step(optimizer, clip)
            rates.step()
            optimizer.zero_grad()
    check(model, clip, metrics, plain)


def test_in_lightning(plain, clip, tmp_path):
    pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()
            self.metrics, self.due, self.seen = Metrics(), Every(5), 0

        def training_step(self, batch, _):
            loss = self.net(**batch)["loss"]
            self.metrics.add(loss=loss)
            self.seen += self.due()
            return loss

        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            clip(self.parameters())

        def configure_optimizers(self):
            optimizer = optimizer_of(self)
            rates = scale_lr(optimizer, 12, 24, warm_up_steps=10)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}

        def transfer_batch_to_device(self, batch, device, _loader):
            return to_device(batch, device)

    module = Module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings = {"accelerator": "cpu", "devices": 1, "max_epochs": EPOCHS, "enable_checkpointing": False}
    trainer = pl.Trainer(default_root_dir=tmp_path, use_distributed_sampler=False, **settings, **quiet)
    trainer.fit(module, Prefetcher(batches(), "cpu"))
    check(module.net, clip, module.metrics, plain)
    assert module.seen == -(-len(plain[1]) // 5)


def test_in_hfs_trainer(plain, clip, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model, metrics = Net(), Metrics()
    optimizer = optimizer_of(model)

    class Clipping(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **_):
            clip(model.parameters())

    class Training(transformers.Trainer):
        def get_train_dataloader(self):
            return Prefetcher(batches(), "cpu")

        def compute_loss(self, model, inputs, **_):
            loss = model(**inputs)["loss"]
            metrics.add(loss=loss)
            return loss

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=EPOCHS, use_cpu=True, max_grad_norm=0.0, report_to="none",
        disable_tqdm=True, logging_strategy="no", save_strategy="no",
    )  # fmt: skip
    rates = scale_lr(optimizer, 12, 24, warm_up_steps=10)
    Training(model=model, args=arguments, callbacks=[Clipping()], optimizers=(optimizer, rates)).train()
    check(model, clip, metrics, plain)


def test_with_accelerate(plain, clip):
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True)
    metrics, bare = Metrics(), Net()
    optimizer = optimizer_of(bare)
    rates = scale_lr(optimizer, 12, 24, warm_up_steps=10)
    model, prepared, rates = accelerator.prepare(bare, optimizer, rates)
    loader = Prefetcher(batches(), accelerator.device)
    for _ in range(EPOCHS):
        for batch, micro in accumulate(loader, 1, model):
            with micro:
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
            metrics.add(loss=loss)
            clip(model.parameters())
            prepared.step()
            rates.step()
            prepared.zero_grad()
    check(bare, clip, metrics, plain)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
