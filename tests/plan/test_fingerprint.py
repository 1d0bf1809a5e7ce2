"""Differences between the machine of a plan and another one, as sentences; similar machines have none."""

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
IMAGES = LoaderLine(loader=0, dataset="Images", dataset_size=1000)


def plan(machine=MACHINE, loader=None):
    return Plan(source="recording", fingerprint=fingerprint(machine, loader))


def differences_on(machine, loader=None, planned_loader=IMAGES):
    return differences(plan(loader=planned_loader), fingerprint(machine, loader))


def machine_with(**fields):
    names = ("cores", "usable_cores", "memory_bytes", "memory_limit_bytes", "platform", "gpus")
    return Machine(**{**{name: getattr(MACHINE, name) for name in names}, **fields})


def test_a_fingerprint_holds_the_facts_that_a_plan_depends_on():
    assert fingerprint(MACHINE, IMAGES) == {
        "machine": {
            "usable_cores": 16,
            "memory_bytes": 64 << 30,
            "gpus": ["H200", "H200"],
            "platform": "Linux x86_64",
        },
        "dataset": {"name": "Images", "size": 1000},
    }


def test_unknown_facts_are_left_out():
    assert fingerprint(Machine(), LoaderLine(loader=0)) == {"machine": {"usable_cores": 1, "gpus": []}}
    assert fingerprint(Machine(), LoaderLine(loader=0, dataset_size=0))["dataset"] == {"size": 0}


def test_the_memory_limit_of_a_container_counts_as_its_memory():
    assert fingerprint(machine_with(memory_limit_bytes=8 << 30))["machine"]["memory_bytes"] == 8 << 30
    assert fingerprint(Machine(memory_limit_bytes=8 << 30))["machine"]["memory_bytes"] == 8 << 30


def test_a_plan_for_this_machine_has_no_differences():
    assert differences(Plan(source="recording", fingerprint=fingerprint(machine_facts(), IMAGES))) == ()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"usable_cores": 2}, "16 usable cores, here are 2"),
        ({"memory_bytes": 8 << 30}, "68.7 GB of memory, here are 8.6 GB"),
        ({"gpus": ()}, "for 2 × H200, here there is no GPU"),
        ({"gpus": (Gpu(name="A100"),)}, "for 2 × H200, here there is 1 × A100"),
        ({"platform": "Darwin 23.1.0 arm64"}, "for Linux x86_64, this is Darwin arm64"),
    ],
)
def test_each_difference_is_a_sentence_with_both_values(facts, words):
    (sentence,) = differences_on(machine_with(**facts))
    assert words in sentence


def test_another_kernel_and_slightly_less_memory_are_not_reported():
    assert differences_on(machine_with(platform="Linux 6.8.0 x86_64", memory_bytes=(64 << 30) - (1 << 30))) == ()


def test_datasets_are_compared_if_both_are_known():
    other = LoaderLine(loader=0, dataset="Words", dataset_size=7)
    assert differences_on(MACHINE) == ()
    assert differences_on(MACHINE, other, planned_loader=None) == ()
    assert differences_on(MACHINE, other) == (
        "The plan is for the dataset Images, this is Words",
        "The plan's dataset has 1,000 samples, this one 7",
    )


def test_a_plan_without_a_machine_is_reported():
    assert differences(Plan(source="probes", fingerprint={}), fingerprint(MACHINE)) == (NO_MACHINE,)


@pytest.mark.parametrize(
    "edited",
    [
        {"machine": 5},
        {"machine": {"usable_cores": "many", "memory_bytes": True, "gpus": 3, "platform": None}},
        {"machine": {"gpus": [{"a": [1]}, None], "usable_cores": 16}, "dataset": ["x"]},
    ],
)
def test_a_fingerprint_of_wrong_types_raises_no_error(edited):
    found = differences(Plan(source="recording", fingerprint=edited), fingerprint(MACHINE, IMAGES))
    assert all(isinstance(sentence, str) for sentence in found)


def test_control_characters_in_names_are_escaped():
    hostile = "\x1b[31m"
    current = fingerprint(
        machine_with(gpus=(Gpu(name=hostile),)), LoaderLine(loader=0, dataset=hostile, dataset_size=1)
    )
    assert all("\x1b" not in sentence for sentence in differences(plan(loader=IMAGES), current))


def test_a_fingerprint_is_written_to_yaml_and_read_back():
    written = replace(plan(loader=IMAGES), source="dataset")
    assert plan_from_yaml(plan_to_yaml(written).encode()).fingerprint == written.fingerprint
