"""A training loop with HF Accelerate over a Loader."""

from itertools import pairwise

import pytest
import torch

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")


@pytest.fixture
def accelerator():
    """Make a new accelerator each time: Accelerate keeps its state in the class."""

    def make(**settings):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()
        return accelerate.Accelerator(cpu=True, **settings)

    yield make
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def train(accelerator, model, optimizer, batches):
    """Train on the batches, and return their keys."""
    seen = []
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch["image"], batch["labels"])["loss"])
            optimizer.step()
            optimizer.zero_grad()
        seen.append(batch["__key__"])
    return seen


def prepared(accelerator, model, loader):
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)


def test_each_epoch_has_every_sample_once_in_a_new_order(accelerator, loader, model, epochs):
    accelerator, ours = accelerator(), loader()
    before = model.layer.weight.clone()
    model, optimizer, training = prepared(accelerator, model, ours)
    assert training is ours
    assert [train(accelerator, model, optimizer, training) for _ in range(2)] == epochs[:2]
    assert not torch.equal(model.layer.weight, before)


@pytest.mark.parametrize("step", [2, 8])
def test_a_registered_loader_is_saved_and_resumes_at_the_next_batch(accelerator, loader, model, epochs, tmp_path, step):
    first = accelerator()
    trained, optimizer, training = prepared(first, model, loader())
    first.register_for_checkpointing(training)
    seen = train(first, trained, optimizer, training) if step > 6 else []
    iterator = iter(training)
    seen += train(first, trained, optimizer, [next(iterator) for _ in range(step - len(seen))])
    first.save_state(tmp_path)
    iterator.close()

    second = accelerator()
    trained, optimizer, training = prepared(second, type(model)(), loader())
    second.register_for_checkpointing(training)
    second.load_state(tmp_path)
    while training.epoch < 2:
        seen += train(second, trained, optimizer, training)
    assert seen == epochs[0] + epochs[1]


def test_gradients_are_accumulated_over_batches(accelerator, loader, model):
    accelerator = accelerator(gradient_accumulation_steps=3)
    trained, optimizer, training = prepared(accelerator, model, loader())
    weights = []
    for batch in training:
        train(accelerator, trained, optimizer, [batch])
        weights.append(model.layer.weight.detach().clone())
    assert [torch.equal(*pair) for pair in pairwise(weights)] == [True, False, True, True, False]
