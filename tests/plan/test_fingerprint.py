"""A plan for another machine is explained in sentences; one for this machine, or one like it, is not."""

from dataclasses import replace

import pytest

from penstock.core.plan import Plan
from penstock.plan.document import plan_from_yaml, plan_to_yaml
from penstock.plan.fingerprint import NO_MACHINE, differences, fingerprint
from penstock.recording.format import Gpu, LoaderLine, Machine
from penstock.watcher.machine.facts import machine_facts

MACHINE = Machine(
    cores=32,
    usable_cores=16,
    memory_bytes=64 << 30,
    platform="Linux 5.15.0-91-generic x86_64",
    gpus=(Gpu(name="H200", memory_bytes=1), Gpu(name="H200", memory_bytes=1)),
)
PICTURES = LoaderLine(loader=0, dataset="Pictures", dataset_size=1000)


def plan(machine=MACHINE, loader=None):
    return Plan(source="recording", fingerprint=fingerprint(machine, loader))


def said(machine, loader=None, of=PICTURES):
    return differences(plan(loader=of), fingerprint(machine, loader))


def changed(**fields):
    names = ("cores", "usable_cores", "memory_bytes", "memory_limit_bytes", "platform", "gpus")
    return Machine(**{**{name: getattr(MACHINE, name) for name in names}, **fields})


def test_what_a_plan_depends_on():
    assert fingerprint(MACHINE, PICTURES) == {
        "machine": {
            "usable_cores": 16,
            "memory_bytes": 64 << 30,
            "gpus": ["H200", "H200"],
            "platform": "Linux x86_64",
        },
        "dataset": {"name": "Pictures", "size": 1000},
    }


def test_what_is_not_known_is_left_out():
    assert fingerprint(Machine(), LoaderLine(loader=0)) == {"machine": {"usable_cores": 1, "gpus": []}}
    assert fingerprint(Machine(), LoaderLine(loader=0, dataset_size=0))["dataset"] == {"size": 0}


def test_the_containers_limit_is_the_memory():
    assert fingerprint(changed(memory_limit_bytes=8 << 30))["machine"]["memory_bytes"] == 8 << 30
    assert fingerprint(Machine(memory_limit_bytes=8 << 30))["machine"]["memory_bytes"] == 8 << 30


def test_this_machine_is_the_default_and_its_own_plan_fits():
    assert differences(Plan(source="recording", fingerprint=fingerprint(machine_facts(), PICTURES))) == ()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"usable_cores": 2}, "16 usable cores, here are 2"),
        ({"memory_bytes": 8 << 30}, "68.7 GB of memory, here are 8.6 GB"),
        ({"gpus": ()}, "for 2 × H200, here there is no GPU"),
        ({"gpus": (Gpu(name="A100"),)}, "for 2 × H200, here there is 1 × A100"),
        ({"platform": "Darwin 23.1.0 arm64"}, "for Linux x86_64, this is Darwin arm64"),
    ],
)
def test_each_difference_is_a_sentence_with_both_sides(there, words):
    (sentence,) = said(changed(**there))
    assert words in sentence


def test_another_kernel_and_a_little_memory_are_no_difference():
    assert said(changed(platform="Linux 6.8.0 x86_64", memory_bytes=(64 << 30) - (1 << 30))) == ()


def test_data_is_compared_where_both_sides_know_theirs():
    other = LoaderLine(loader=0, dataset="Words", dataset_size=7)
    assert said(MACHINE) == ()
    assert said(MACHINE, other, of=None) == ()
    assert said(MACHINE, other) == (
        "The plan is for the dataset Pictures, this is Words",
        "The plan's dataset has 1,000 samples, this one 7",
    )


def test_a_plan_without_a_machine_says_so():
    assert differences(Plan(source="probes", fingerprint={}), fingerprint(MACHINE)) == (NO_MACHINE,)


@pytest.mark.parametrize(
    "strange",
    [
        {"machine": 5},
        {"machine": {"usable_cores": "many", "memory_bytes": True, "gpus": 3, "platform": None}},
        {"machine": {"gpus": [{"a": [1]}, None], "usable_cores": 16}, "dataset": ["x"]},
    ],
)
def test_a_plan_edited_by_hand_raises_nothing(strange):
    found = differences(Plan(source="recording", fingerprint=strange), fingerprint(MACHINE, PICTURES))
    assert all(isinstance(sentence, str) for sentence in found)


def test_names_are_spelled_out():
    hostile = "\x1b[31m"
    here = fingerprint(changed(gpus=(Gpu(name=hostile),)), LoaderLine(loader=0, dataset=hostile, dataset_size=1))
    assert all("\x1b" not in sentence for sentence in differences(plan(loader=PICTURES), here))


def test_a_fingerprint_survives_the_file():
    made = replace(plan(loader=PICTURES), source="dataset")
    assert plan_from_yaml(plan_to_yaml(made).encode()).fingerprint == made.fingerprint
