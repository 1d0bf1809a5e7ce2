"""The callbacks for Lightning and for the Trainer of Hugging Face, in small real trainings."""

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

UNPATCHED_ITER = DataLoader.__iter__
SAMPLES, BATCH_SIZE = 20, 4
EPOCH = list(range(SAMPLES // BATCH_SIZE))
"""The indices of the batches of a whole epoch."""
STEP_PHASES = {"forward", "backward", "optimizer"}


class PointsDataset(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"x": torch.full((3,), float(index)), "labels": torch.tensor(index % 2)}


class SmallModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x), labels)}


@pytest.fixture(autouse=True)
def no_patch_is_left():
    yield
    assert DataLoader.__iter__ is UNPATCHED_ITER


@pytest.fixture
def record(tmp_path):
    return tmp_path / "run.jsonl"


class ListSink(list):
    """A sink that keeps all lines."""

    put = list.append

    def close(self):
        self.closed = True

    def lines_of(self, line_class):
        return [line for line in self if isinstance(line, line_class)]

    @property
    def epochs(self):
        """Loader → the batch indices of each of its epochs."""
        found = {}
        for step in self.lines_of(StepLine):
            found.setdefault(step.loader, {}).setdefault(step.epoch, []).append(step.batch)
        return {loader: list(epochs.values()) for loader, epochs in found.items()}


@pytest.fixture
def sink():
    return ListSink()


class TestLightning:
    @pytest.fixture
    def fit(self, tmp_path):
        pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = SmallModel()
                self.fail_at = None

            def training_step(self, batch, batch_index):
                if batch_index == self.fail_at:
                    raise RuntimeError("an error of the model")
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
            trainer.fit(
                module, train or DataLoader(PointsDataset(), BATCH_SIZE, shuffle=True, num_workers=workers), val
            )
            return module.model.layer.weight.detach()

        return fit

    @pytest.fixture
    def recording_callback(self, record):
        from penstock.watcher.callbacks.lightning import LightningWatch

        return LightningWatch(record)

    @pytest.fixture
    def sink_callback(self, sink):
        from penstock.watcher.callbacks.lightning import LightningWatch

        return LightningWatch(sinks=[sink])

    def test_every_batch_is_recorded_with_its_phases_and_workers(self, fit, recording_callback, record):
        fit([recording_callback], workers=2)
        recording = load(record)
        assert [step.batch for step in recording.steps] == EPOCH * 2
        assert {step.samples for step in recording.steps} == {BATCH_SIZE}
        assert {step.worker for step in recording.steps} == {0, 1}
        assert all(_innermost_names(step.phases) >= STEP_PHASES for step in recording.steps)
        assert recording.loaders[0].settings["num_workers"].in_force == 2
        assert (recording.end.how, recording.notes) == ("done", ())

    def test_the_callback_does_not_change_the_training(self, fit, sink_callback):
        assert torch.allclose(fit([sink_callback]), fit([]), rtol=1e-5)

    def test_the_validation_loader_is_recorded_as_a_second_loader(self, fit, sink_callback, sink):
        fit([sink_callback], val=DataLoader(PointsDataset(), 10))
        assert sink.epochs == {0: [EPOCH, EPOCH], 1: [[0, 1], [0, 1]]}

    def test_a_training_that_raises_is_recorded_up_to_the_error(self, fit, sink_callback, sink):
        with pytest.raises(RuntimeError, match="an error of the model"):
            fit([sink_callback], fail_at=3)
        assert sink.epochs == {0: [[0, 1, 2, 3]]}
        assert [line.how for line in sink.lines_of(EndLine)] == ["raised"]
        assert sink.closed

    def test_a_loader_that_is_watched_already_is_recorded_once_with_its_phases(self, fit, sink_callback, sink, caplog):
        other_sink = ListSink()
        with (
            watch(DataLoader(PointsDataset(), BATCH_SIZE), sinks=[other_sink]) as watched,
            caplog.at_level(logging.WARNING, "penstock"),
        ):
            fit([sink_callback], train=watched)
        assert other_sink.epochs == {0: [EPOCH, EPOCH]}
        assert all(_innermost_names(step.phases) >= STEP_PHASES for step in other_sink.lines_of(StepLine))
        assert sink == []
        assert caplog.messages == [
            "this process is watched already, recorded to None: the callback's record and sinks are not used"
        ]


class TestHuggingFace:
    @pytest.fixture
    def train(self, tmp_path):
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")

        def train(callbacks, model=None, workers=0, **settings):
            transformers.set_seed(3)
            model = model or SmallModel()
            arguments = transformers.TrainingArguments(
                output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=BATCH_SIZE, use_cpu=True,
                per_device_eval_batch_size=10, report_to="none", disable_tqdm=True, logging_strategy="no",
                save_strategy="no", dataloader_pin_memory=False,
                dataloader_num_workers=workers, **settings,
            )  # fmt: skip
            trainer = transformers.Trainer(
                model=model,
                args=arguments,
                train_dataset=PointsDataset(),
                eval_dataset=PointsDataset(),
                callbacks=callbacks,
            )
            trainer.train()
            return model.layer.weight.detach()

        return train

    @pytest.fixture
    def recording_callback(self, record):
        pytest.importorskip("transformers", reason="transformers is not installed")
        from penstock.watcher.callbacks.hf import TrainerWatch

        return TrainerWatch(record)

    @pytest.fixture
    def sink_callback(self, sink):
        from penstock.watcher.callbacks.hf import TrainerWatch

        return TrainerWatch(sinks=[sink])

    def test_every_batch_is_recorded_with_its_phases_and_workers(self, train, recording_callback, record):
        train([recording_callback], workers=2)
        recording = load(record)
        assert [step.batch for step in recording.steps] == EPOCH * 2
        assert {step.samples for step in recording.steps} == {BATCH_SIZE}
        assert {step.worker for step in recording.steps} == {0, 1}
        names = set().union(*(_innermost_names(step.phases) for step in recording.steps))
        assert names >= STEP_PHASES
        assert (recording.end.how, recording.notes) == ("done", ())

    def test_the_callback_does_not_change_the_training(self, train, sink_callback):
        assert torch.allclose(train([sink_callback]), train([]), rtol=1e-5)

    def test_the_loader_of_each_evaluation_is_recorded_as_another_loader(self, train, sink_callback, sink):
        train([sink_callback], eval_strategy="epoch")
        assert sink.epochs == {0: [EPOCH, EPOCH], 1: [[0, 1]], 2: [[0, 1]]}

    def test_a_training_that_raised_is_ended_when_the_next_one_begins(self, train, sink_callback, sink):
        class RaisingModel(SmallModel):
            def forward(self, x, labels):
                raise RuntimeError("an error of the model")

        with pytest.raises(RuntimeError, match="an error of the model"):
            train([sink_callback], RaisingModel())
        assert not sink.lines_of(EndLine)
        train([sink_callback])
        assert [line.how for line in sink.lines_of(EndLine)] == ["raised", "done"]
        steps_of_first_training = [0, 1]  # Accelerate draws one batch ahead of the one that raised
        assert [step.batch for step in sink.lines_of(StepLine)] == [*steps_of_first_training, *EPOCH, *EPOCH]


def test_every_rank_writes_its_own_recording(record):
    from penstock.watcher.callbacks.training import WatchedTraining

    training = WatchedTraining(record, live=False)
    training.begin(rank=2)
    training.end()
    assert load(record.with_name("run.rank2.jsonl")).end.how == "done"
    assert not record.exists()


def test_a_callback_without_any_output_installs_no_hooks(record):
    from penstock.watcher.callbacks.training import WatchedTraining

    training = WatchedTraining(live=False)
    training.begin(rank=0)
    assert DataLoader.__iter__ is UNPATCHED_ITER
    with watch(DataLoader(PointsDataset(), BATCH_SIZE), record=record, live=False) as watched:
        list(watched)
    training.end()
    assert len(load(record).steps) == len(EPOCH)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_can_record_its_own_training(record, tmp_path):
    from penstock.watcher.callbacks.training import WatchedTraining

    with watch(range(3), record=record, live=False) as watched:
        list(watched)
        child = os.fork()
        if not child:
            training = WatchedTraining(tmp_path / "child.jsonl", live=False)
            training.begin(rank=0)
            list(DataLoader(PointsDataset(), BATCH_SIZE))
            training.end()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert len(load(tmp_path / "child.jsonl").steps) == len(EPOCH)
    assert len(load(record).steps) == 3


def test_the_rest_of_the_package_imports_no_framework():
    code = (
        "import sys, penstock.watcher.callbacks, penstock.watcher.sinks, penstock.watcher.sinks.terminal;"
        "sys.exit(any(name in sys.modules for name in ('lightning', 'transformers', 'torch', 'tensorboard')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _innermost_names(phases):
    """Return the names of phases without those of the phases around them."""
    return {path.rpartition("/")[2] for path in phases}
