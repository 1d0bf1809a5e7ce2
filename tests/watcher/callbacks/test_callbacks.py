"""Trainings of Lightning and of Hugging Face, watched by a callback."""

import logging
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from penstock.recording.format import EndLine, StepLine
from penstock.recording.reader import load
from penstock.watcher.watch import watch

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),  # Lightning to torch
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]

PLAIN = DataLoader.__iter__
SAMPLES, BATCH, BATCHES = 20, 4, 5


class Points(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, at):
        return {"x": torch.full((3,), float(at)), "labels": torch.tensor(at % 2)}


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x), labels)}


@pytest.fixture(autouse=True)
def torch_is_as_it_was():
    yield
    assert DataLoader.__iter__ is PLAIN


@pytest.fixture
def record(tmp_path):
    return tmp_path / "run.jsonl"


class Kept(list):
    """A sink that keeps all lines."""

    put = list.append

    def close(self):
        self.closed = True

    def of(self, kind):
        return [line for line in self if isinstance(line, kind)]

    @property
    def passes(self):
        """Of each loader: the batches of each pass."""
        found = {}
        for step in self.of(StepLine):
            found.setdefault(step.loader, {}).setdefault(step.epoch, []).append(step.batch)
        return {loader: list(of_pass.values()) for loader, of_pass in found.items()}


@pytest.fixture
def kept():
    return Kept()


WHOLE = list(range(BATCHES))


class TestLightning:
    @pytest.fixture
    def fit(self, tmp_path):
        pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = Tiny()
                self.fail_at = None

            def training_step(self, batch, at):
                if at == self.fail_at:
                    raise RuntimeError("no more")
                return self.model(**batch)

            def validation_step(self, batch, _):
                self.model(**batch)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)

        def fit(callbacks, fail_at=None, train=None, val=None, workers=0):
            pl.seed_everything(3, verbose=False)
            module = Module()
            module.fail_at = fail_at
            trainer = pl.Trainer(
                accelerator="cpu", devices=1, max_epochs=2, default_root_dir=tmp_path, callbacks=callbacks,
                num_sanity_val_steps=0, enable_checkpointing=False, enable_progress_bar=False, logger=False,
                enable_model_summary=False,
            )  # fmt: skip
            trainer.fit(module, train or DataLoader(Points(), BATCH, shuffle=True, num_workers=workers), val)
            return module.model.layer.weight.detach()

        return fit

    @pytest.fixture
    def callback(self, record):
        from penstock.watcher.callbacks.lightning import Watch

        return Watch(record)

    @pytest.fixture
    def watching(self, kept):
        from penstock.watcher.callbacks.lightning import Watch

        return Watch(sinks=[kept])

    def test_every_batch_is_recorded_with_its_phases_and_workers(self, fit, callback, record):
        fit([callback], workers=2)
        seen = load(record)
        assert [step.batch for step in seen.steps] == WHOLE * 2
        assert {step.samples for step in seen.steps} == {BATCH}
        assert {step.worker for step in seen.steps} == {0, 1}
        assert all({"forward", "backward", "optimizer"} <= _last_names(step.phases) for step in seen.steps)
        assert seen.loaders[0].settings["num_workers"].in_force == 2
        assert (seen.end.how, seen.notes) == ("done", ())

    def test_the_training_is_the_same_with_and_without(self, fit, watching):
        assert torch.allclose(fit([watching]), fit([]), rtol=1e-5)

    def test_validation_is_a_loader_of_its_own(self, fit, watching, kept):
        fit([watching], val=DataLoader(Points(), 10))
        assert kept.passes == {0: [WHOLE, WHOLE], 1: [[0, 1], [0, 1]]}

    def test_a_training_that_fails_is_recorded_as_far_as_it_came(self, fit, watching, kept):
        with pytest.raises(RuntimeError, match="no more"):
            fit([watching], fail_at=3)
        assert kept.passes == {0: [[0, 1, 2, 3]]}
        assert [line.how for line in kept.of(EndLine)] == ["raised"]
        assert kept.closed

    def test_a_loader_that_is_watched_already_is_seen_once_and_with_the_phases(self, fit, watching, kept, caplog):
        other = Kept()
        with watch(DataLoader(Points(), BATCH), sinks=[other]) as watched, caplog.at_level(logging.WARNING, "penstock"):
            fit([watching], train=watched)
        assert other.passes == {0: [WHOLE, WHOLE]}
        assert all({"forward", "backward", "optimizer"} <= _last_names(step.phases) for step in other.of(StepLine))
        assert kept == []
        assert caplog.messages == [
            "this process is watched already, recorded to None: the callback's record and sinks are not used"
        ]


class TestHuggingFace:
    @pytest.fixture
    def train(self, tmp_path):
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")

        def train(callbacks, model=None, workers=0, **settings):
            transformers.set_seed(3)
            model = model or Tiny()
            arguments = transformers.TrainingArguments(
                output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=BATCH, use_cpu=True,
                per_device_eval_batch_size=10, report_to="none", disable_tqdm=True, logging_strategy="no",
                save_strategy="no", dataloader_pin_memory=False,
                dataloader_num_workers=workers, **settings,
            )  # fmt: skip
            trainer = transformers.Trainer(
                model=model, args=arguments, train_dataset=Points(), eval_dataset=Points(), callbacks=callbacks
            )
            trainer.train()
            return model.layer.weight.detach()

        return train

    @pytest.fixture
    def callback(self, record):
        pytest.importorskip("transformers", reason="transformers is not installed")
        from penstock.watcher.callbacks.hf import Watch

        return Watch(record)

    @pytest.fixture
    def watching(self, kept):
        from penstock.watcher.callbacks.hf import Watch

        return Watch(sinks=[kept])

    def test_every_batch_is_recorded_with_its_phases_and_workers(self, train, callback, record):
        train([callback], workers=2)
        seen = load(record)
        assert [step.batch for step in seen.steps] == WHOLE * 2
        assert {step.samples for step in seen.steps} == {BATCH}
        assert {step.worker for step in seen.steps} == {0, 1}
        names = set().union(*(_last_names(step.phases) for step in seen.steps))
        assert {"forward", "backward", "optimizer"} <= names
        assert (seen.end.how, seen.notes) == ("done", ())

    def test_the_training_is_the_same_with_and_without(self, train, watching):
        assert torch.allclose(train([watching]), train([]), rtol=1e-5)

    def test_each_evaluation_is_a_loader_of_its_own(self, train, watching, kept):
        train([watching], eval_strategy="epoch")
        assert kept.passes == {0: [WHOLE, WHOLE], 1: [[0, 1]], 2: [[0, 1]]}

    def test_a_training_that_failed_ends_when_the_next_begins(self, train, watching, kept):
        class Fails(Tiny):
            def forward(self, x, labels):
                raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            train([watching], Fails())
        assert not kept.of(EndLine)
        train([watching])
        assert [line.how for line in kept.of(EndLine)] == ["raised", "done"]
        assert [step.batch for step in kept.of(StepLine)] == [0, 1, *WHOLE, *WHOLE]  # Accelerate fetches one ahead


def test_every_rank_has_a_recording_of_its_own(record):
    from penstock.watcher.callbacks.training import WatchedTraining

    training = WatchedTraining(record, live=False)
    training.begin(rank=2)
    training.end()
    assert load(record.with_name("run.rank2.jsonl")).end.how == "done"
    assert not record.exists()


def test_a_callback_that_is_to_tell_nobody_is_in_nobodys_way(record):
    from penstock.watcher.callbacks.training import WatchedTraining

    training = WatchedTraining(live=False)
    training.begin(rank=0)
    assert DataLoader.__iter__ is PLAIN
    with watch(DataLoader(Points(), BATCH), record=record, live=False) as watched:
        list(watched)
    training.end()
    assert len(load(record).steps) == BATCHES


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_child_has_a_training_of_its_own(record, tmp_path):
    from penstock.watcher.callbacks.training import WatchedTraining

    with watch(range(3), record=record, live=False) as watched:
        list(watched)
        child = os.fork()
        if not child:
            training = WatchedTraining(tmp_path / "child.jsonl", live=False)
            training.begin(rank=0)
            list(DataLoader(Points(), BATCH))
            training.end()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert len(load(tmp_path / "child.jsonl").steps) == BATCHES
    assert len(load(record).steps) == 3


def test_neither_framework_is_imported_by_the_rest_of_the_house():
    code = (
        "import sys, penstock.watcher.callbacks, penstock.watcher.sinks, penstock.watcher.sinks.terminal;"
        "sys.exit(any(name in sys.modules for name in ('lightning', 'transformers', 'torch', 'tensorboard')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _last_names(phases):
    return {path.rpartition("/")[2] for path in phases}
