"""Loaders that a script creates anew for each epoch are judged as one loader."""

from dataclasses import replace

import msgspec
from tests.support.simulated_recordings import TorchRun

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.evidence.recreated_loaders import find_recreated_loaders
from penstock.diagnose.verdict import diagnose

EPOCHS = 12
STEPS = 15


def recordings_of_one_and_of_many_loaders(**changes):
    """Return the recording of a loader with many epochs, and the same run as many loaders with one epoch each.

    `changes` are fields of the many loaders, as functions of the number of the loader.
    """
    run = TorchRun(
        workers=4, count=STEPS, epochs=EPOCHS, startup_s=0.4, step_s=0.02, settings={"persistent_workers": False}
    )
    one = run.recording()

    def loader_per_epoch(lines):
        return tuple(msgspec.structs.replace(line, loader=line.epoch, epoch=0) for line in lines)

    def loader_line(number):
        changed = {name: value_of(number) for name, value_of in changes.items()}
        return msgspec.structs.replace(one.loaders[0], loader=number, **changed)

    return one, replace(
        one,
        loaders={number: loader_line(number) for number in range(EPOCHS)},
        epochs=loader_per_epoch(one.epochs),
        steps=loader_per_epoch(one.steps),
        fetches=loader_per_epoch(one.fetches),
    )


def joined(recording):
    return find_recreated_loaders(recording).join(recording)


def test_equal_loaders_used_one_after_the_other_are_joined():
    one, many = recordings_of_one_and_of_many_loaders()
    found = joined(many)
    assert found.epochs == one.epochs
    assert found.steps == one.steps
    assert found.fetches == one.fetches
    assert list(found.loaders) == [0]
    assert gather(many)[0].settings.times_created == EPOCHS


def test_the_advice_for_recreated_loaders_is_to_create_one():
    finding = diagnose(recordings_of_one_and_of_many_loaders()[1]).findings[0]
    assert finding.rule == "worker_startup"
    assert finding.advice == f"Make the DataLoader once, not {EPOCHS} times, with persistent_workers=True"


def test_loaders_of_different_datasets_are_not_joined():
    many = recordings_of_one_and_of_many_loaders(dataset_size=lambda number: 1000 + number)[1]
    assert joined(many) is many
    assert len(gather(many)) == EPOCHS


def test_loaders_used_side_by_side_are_not_joined():
    many = recordings_of_one_and_of_many_loaders()[1]
    steps = tuple(msgspec.structs.replace(step, at_s=step.at_s % 0.5) for step in many.steps)
    epochs = tuple(msgspec.structs.replace(start, at_s=0.0) for start in many.epochs)
    assert joined(replace(many, steps=steps, epochs=epochs)).loaders.keys() == many.loaders.keys()


def test_a_loader_created_once_stays_as_it_is():
    one = recordings_of_one_and_of_many_loaders()[0]
    assert joined(one) is one
    assert gather(one)[0].settings.times_created == 1
