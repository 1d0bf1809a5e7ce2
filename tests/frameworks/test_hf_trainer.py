"""HF's Trainer trains from a Loader."""

import json
from pathlib import Path

import pytest

from penstock.errors import SettingError

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


class LoaderTrainer(transformers.Trainer):
    """A Trainer that uses the loader in place of a DataLoader of its own, as a user would write it."""

    def __init__(self, loader, **settings):
        super().__init__(**settings)
        self.loader = loader

    def get_train_dataloader(self):
        return self.loader


class SavePosition(transformers.TrainerCallback):
    """A callback that saves the loader's state in every checkpoint."""

    def on_save(self, args, state, control, train_dataloader, **_):
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        (folder / "loader.json").write_text(json.dumps(train_dataloader.state_dict()))


@pytest.fixture
def trainer(loader, model, tmp_path):
    """Make a trainer, and a list that collects the keys of its batches."""

    def make(callbacks=(), **settings):
        seen = []

        def without_keys(batch):
            seen.append(batch.pop("__key__"))
            del batch["__padding__"]
            return batch

        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True,
            report_to="none", disable_tqdm=True, logging_strategy="no", **{"save_strategy": "no", **settings},
        )  # fmt: skip
        made = LoaderTrainer(loader(batch_transform=without_keys), model=model, args=arguments, callbacks=[*callbacks])
        return made, seen

    return make


def test_each_epoch_has_every_sample_once_in_a_new_order(trainer, model, epochs):
    training, seen = trainer()
    before = model.layer.weight.detach().clone()
    training.train()
    assert seen == epochs[0] + epochs[1]
    assert training.num_examples(training.loader) == 22
    assert not model.layer.weight.equal(before)


def test_gradient_accumulation_uses_all_batches(trainer, epochs):
    training, seen = trainer(gradient_accumulation_steps=4)
    training.train()
    assert seen == epochs[0] + epochs[1]
    assert training.state.global_step == 4


@pytest.mark.parametrize("step", [2, 9])
def test_a_checkpoint_resumes_at_the_next_batch(trainer, epochs, tmp_path, step):
    first, seen = trainer([SavePosition()], save_strategy="steps", save_steps=step, max_steps=step)
    first.train()
    checkpoint = tmp_path / f"checkpoint-{step}"

    second, rest = trainer(ignore_data_skip=True)
    second.loader.load_state_dict(json.loads((checkpoint / "loader.json").read_text()))
    second.train(resume_from_checkpoint=str(checkpoint))
    assert seen + rest == epochs[0] + epochs[1]
    assert second.state.global_step == 12


def test_resuming_without_ignore_data_skip_is_an_error_that_names_it(trainer, tmp_path):
    first, _ = trainer(save_strategy="steps", save_steps=2, max_steps=2)
    first.train()
    second, _ = trainer()
    with pytest.raises(SettingError, match="ignore_data_skip=True"):
        second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
