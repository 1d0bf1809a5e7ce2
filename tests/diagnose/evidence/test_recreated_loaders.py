"""A loader that is made anew for each epoch is judged as one."""

from dataclasses import replace

import msgspec
from tests.support.made_recordings import Made

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.evidence.recreated_loaders import find_recreated_loaders
from penstock.diagnose.verdict import diagnose

PASSES = 12
STEPS = 15


def renewed(**change):
    """What Made records as passes of one loader, as loaders of one pass each."""
    made = Made(
        workers=4, count=STEPS, passes=PASSES, startup_s=0.4, step_s=0.02, settings={"persistent_workers": False}
    )
    one = made.recording()

    def apart(lines, **none):
        return tuple(msgspec.structs.replace(line, loader=line.epoch, epoch=0) for line in lines)

    return one, replace(
        one,
        loaders={
            number: msgspec.structs.replace(
                one.loaders[0], loader=number, **{k: make(number) for k, make in change.items()}
            )
            for number in range(PASSES)
        },
        epochs=tuple(msgspec.structs.replace(line, loader=line.epoch, epoch=0) for line in one.epochs),
        steps=apart(one.steps),
        fetches=apart(one.fetches),
    )


def as_one(recording):
    return find_recreated_loaders(recording).join(recording)


def test_loaders_that_are_alike_and_follow_one_another_are_passes_of_one():
    one, many = renewed()
    found = as_one(many)
    assert found.epochs == one.epochs
    assert found.steps == one.steps
    assert found.fetches == one.fetches
    assert list(found.loaders) == [0]
    assert gather(many)[0].settings.times_created == PASSES


def test_the_start_of_each_is_found_and_the_advice_is_to_make_it_once():
    finding = diagnose(renewed()[1]).findings[0]
    assert finding.rule == "worker_startup"
    assert finding.advice == f"Make the DataLoader once, not {PASSES} times, with persistent_workers=True"


def test_loaders_of_other_data_stay_apart():
    many = renewed(dataset_size=lambda number: 1000 + number)[1]
    assert as_one(many) is many
    assert len(gather(many)) == PASSES


def test_loaders_that_run_side_by_side_stay_apart():
    many = renewed()[1]
    beside = tuple(msgspec.structs.replace(step, at_s=step.at_s % 0.5) for step in many.steps)
    passes = tuple(msgspec.structs.replace(each, at_s=0.0) for each in many.epochs)
    assert as_one(replace(many, steps=beside, epochs=passes)).loaders.keys() == many.loaders.keys()


def test_a_loader_that_is_made_once_is_left_as_it_is():
    one = renewed()[0]
    assert as_one(one) is one
    assert gather(one)[0].settings.times_created == 1
