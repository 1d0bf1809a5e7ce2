"""Random damage: a recording loads, or loading it raises RecordingError."""

import gzip
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RecordingError
from penstock.recording.format import (
    EndLine,
    EpochEndLine,
    EpochStartLine,
    EventLine,
    FetchLine,
    HopsLine,
    LoaderLine,
    LoaderSetting,
    ProcessLoad,
    RunLine,
    StackSamplesLine,
    StepLine,
    StorageLine,
    SystemLine,
)
from penstock.recording.reader import load
from penstock.recording.writer import Recorder

TOKENS = [
    b"null",
    b"-1",
    b"1e400",
    b"NaN",
    b'"',
    b"{",
    b"}",
    b"[",
    b"\n",
    b"\x00",
    b"\xff\xfe",
    b"9" * 400,
    b":",
    b",",
    b"",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording with every kind of line."""
    path = tmp_path_factory.mktemp("fuzz") / "run.jsonl"
    recorder = Recorder(path, RunLine(command=("train.py",)))
    recorder.put(LoaderLine(loader=0, settings={"num_workers": LoaderSetting(requested=8, in_force=4)}))
    recorder.put(EpochStartLine(loader=0, epoch=0, at_s=0.0))
    for batch in range(6):
        at_s = batch / 8
        recorder.put(
            StepLine(loader=0, batch=batch, at_s=at_s, wait_s=0.01, step_s=0.1, phases={"forward": 0.05}, ready=1)
        )
        recorder.put(FetchLine(loader=0, batch=batch, worker=batch % 2, at_s=at_s, fetch_s=0.2))
    recorder.put(StackSamplesLine(at_s=0.5, samples=9, states={"read": 9}))
    recorder.put(HopsLine(loader=0, at_s=0.6, hops={"read": (1.0, 2.0, 3.0)}))
    recorder.put(SystemLine(at_s=0.7, cpu=1.0, processes=(ProcessLoad(cpu=0.5),)))
    recorder.put(
        StorageLine(
            loader=0,
            readers=4,
            read_bytes=4096,
            sequential_alone=1e9,
            sequential_together=2e9,
            random_alone=1e8,
            random_together=3e8,
        )
    )
    recorder.put(EventLine(what="gc", at_s=0.8, detail={"generation": 2}))
    recorder.put(EpochEndLine(loader=0, epoch=0, at_s=0.9))
    recorder.put(EndLine(at_s=1.0))
    recorder.close()
    return path.read_bytes()


def mutated(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 30])):
        start = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[start] = rng.randrange(256)
            case 1:
                data[start] ^= 1 << rng.randrange(8)
            case 2:
                data[start : start + rng.randrange(1, 9)] = rng.choice(TOKENS)
            case 3:
                del data[start : start + rng.randrange(1, 200)]
            case _:
                data[start:start] = data[rng.randrange(len(data)) :][: rng.randrange(1, 200)]
        if not data:
            return b"\n"
    return bytes(data)


def loads_soundly(path):
    """Return whether the file loads; if it does, check that its lines are within their bounds."""
    try:
        recording = load(path)
    except RecordingError:
        return False
    for line in (*recording.epochs, *recording.steps, *recording.fetches, *recording.hops, *recording.epoch_ends):
        assert line.loader in recording.loaders
        assert math.isfinite(line.at_s)
        assert line.at_s >= 0
    for step in recording.steps:
        assert min(step.wait_s, step.step_s, *step.phases.values(), 0.0) == 0.0
    assert all(sample.seconds > 0 for sample in recording.system)
    assert all(note.isprintable() for note in recording.notes)
    return True


def test_damaged_recordings_load_or_raise_a_recording_error(recorded, tmp_path):
    rng = random.Random(4)
    path = tmp_path / "run.jsonl"
    loaded = 0
    for _ in range(3000):
        path.write_bytes(mutated(recorded, rng))
        loaded += loads_soundly(path)
    assert loaded > 2000


def test_damaged_compressed_recordings_load_or_raise_a_recording_error(recorded, tmp_path):
    rng = random.Random(5)
    path = tmp_path / "run.jsonl.gz"
    compressed = gzip.compress(recorded)
    refused = 0
    for _ in range(300):
        path.write_bytes(mutated(compressed, rng))
        refused += not loads_soundly(path)
    assert refused > 0


KINDS = ["run", "loader", "step", "fetch", "hops", "system", "where", "end", "pass"]
NUMBER_FIELDS = ["loader", "batch", "at_s", "wait_s", "step_s", "worker", "number", "seconds"]
NUMBER_FIELDS.append("looks")  # glossary: allow
OTHER_FIELDS = ["phases", "hops", "states", "settings", "processes", "machine", "version", "pass"]
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"kind": st.sampled_from(KINDS)},
            optional=dict.fromkeys(NUMBER_FIELDS, st.integers(-3, 5) | st.floats() | st.none())
            | dict.fromkeys(OTHER_FIELDS, any_json),
        ),
        max_size=6,
    )
)
def test_lines_with_wrong_values_load_or_raise_a_recording_error(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "wrong_values.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    loads_soundly(path)
