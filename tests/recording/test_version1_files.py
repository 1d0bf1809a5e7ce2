"""Recordings of format version 1 that were made by an earlier Penstock, with other names of classes and attributes.

version1_torch_two_workers: two epochs of 80 batches of a torch DataLoader that is constructed anew for every epoch,
with two workers of which worker 0 is slower. version1_penstock_loader: two epochs of 100 batches of one
`penstock.Loader`. version1_all_fields: one line of every kind with a value in every field.
"""

import gzip
import json
from collections import Counter

import msgspec
import pytest
from tests.support.paths import DATA_FILES

from penstock.diagnose.verdict import diagnose
from penstock.recording.format import AnyLine
from penstock.recording.reader import load

TORCH = DATA_FILES / "version1_torch_two_workers.jsonl.gz"
LOADER = DATA_FILES / "version1_penstock_loader.jsonl.gz"
ALL_FIELDS = DATA_FILES / "version1_all_fields.jsonl"


def raw_lines(path):
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()


def loaded_counts(recording):
    """Return the number of lines of each kind, named as in the file."""
    counts = {
        "run": 1,
        "loader": len(recording.loaders),
        "pass": len(recording.epochs),
        "pass_end": len(recording.epoch_ends),
        "step": len(recording.steps),
        "fetch": len(recording.fetches),
        "where": len(recording.stack_samples),
        "hops": len(recording.hops),
        "system": len(recording.system),
        "storage": len(recording.storage),
        "event": len(recording.events),
        "end": int(recording.end is not None),
    }
    return {kind: count for kind, count in counts.items() if count}


@pytest.mark.parametrize("path", [TORCH, LOADER, ALL_FIELDS], ids=lambda path: path.name)
def test_every_line_is_encoded_as_it_was_decoded(path):
    for raw in raw_lines(path):
        line = msgspec.json.decode(raw, type=AnyLine)
        assert json.loads(msgspec.json.encode(line)) == json.loads(raw)


@pytest.mark.parametrize("path", [TORCH, LOADER], ids=lambda path: path.name)
def test_every_line_is_loaded_without_a_note(path):
    recording = load(path)
    assert recording.notes == ()
    assert loaded_counts(recording) == Counter(json.loads(raw)["kind"] for raw in raw_lines(path))


def test_all_fields_has_a_line_of_every_kind():
    kinds = [json.loads(raw)["kind"] for raw in raw_lines(ALL_FIELDS)]
    assert sorted(kinds) == sorted(kind.__struct_config__.tag for kind in AnyLine.__args__)


def test_the_recording_of_a_torch_loader_is_loaded_completely():
    recording = load(TORCH)
    assert loaded_counts(recording) == {
        "run": 1, "loader": 2, "pass": 2, "pass_end": 2, "step": 160, "fetch": 160, "where": 21, "system": 7,
        "event": 12, "end": 1,
    }  # fmt: skip
    assert [(loader.type, loader.name, loader.batches) for loader in recording.loaders.values()] == [
        ("torch", "train_loader", 80)
    ] * 2
    assert sum(not step.profiled for step in recording.steps) == 90
    assert Counter(fetch.worker for fetch in recording.fetches) == {0: 80, 1: 80}
    assert {event.what for event in recording.events} == {"worker_started", "files", "checkpoint", "gc"}


def test_the_recording_of_a_penstock_loader_is_loaded_completely():
    recording = load(LOADER)
    assert loaded_counts(recording) == {
        "run": 1, "loader": 1, "pass": 2, "pass_end": 2, "step": 200, "where": 10, "hops": 9, "system": 4, "end": 1,
    }  # fmt: skip
    assert (recording.loaders[0].type, recording.loaders[0].name) == ("penstock", "train_loader")
    assert sum(step.samples for step in recording.steps) == 1600
    epochs = zip(recording.epochs, recording.epoch_ends, strict=True)
    assert [(start.epoch, end.how) for start, end in epochs] == [(0, "done"), (1, "done")]
    assert {"read", "decode"} <= recording.hops[-1].hops.keys()


def test_the_slow_worker_of_the_torch_loader_is_diagnosed():
    diagnosis = diagnose(load(TORCH))
    assert [finding.rule for finding in diagnosis.findings][:1] == ["lagging_worker"]


def test_the_python_code_between_batches_of_the_penstock_loader_is_diagnosed():
    diagnosis = diagnose(load(LOADER))
    assert [finding.rule for finding in diagnosis.findings] == ["main_process_python"]
