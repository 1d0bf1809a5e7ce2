"""Plans as files: what is written is read, what is edited is checked, what is broken is refused with the place."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.plan import Change, Plan, ThroughputLimit
from penstock.errors import SettingError, StorageError
from penstock.plan.document import (
    MAX_BYTES,
    DataLoaderSettings,
    load_plan,
    plan_document,
    plan_from_yaml,
    plan_to_yaml,
    save_plan,
)
from penstock.watcher.script.apply_plan import PLAN_SETTINGS

FULL = Plan(
    source="recording",
    profile="speed",
    fingerprint={"machine": {"usable_cores": 2, "gpus": []}, "dataset": {"name": "图片", "size": 100}},
    samples_s=36.0,
    planned_samples_s=71.5,
    limits=(ThroughputLimit(name="cpu", samples_s=74.0), ThroughputLimit(name="main", samples_s=120.0)),
    most_gain=2.25,
    memory_bytes=1 << 30,
    changes=(
        Change(scope="dataloader", name="num_workers", now=32, then=2, reason="2 cores", gain=0.98, cost="30 MB less"),
        Change(scope="dataloader", name="prefetch_factor", now=4, then=None, reason="no workers"),
        Change(scope="step", name="precision", now=None, then="bfloat16", reason="try it"),
    ),
    dataloader={"num_workers": 2, "pin_memory": True},
    loader={"num_workers": 2},
    notes=("one", "two: with a colon"),
)
SMALLEST = "penstock_plan: 1\nsource: recording\n"


def refusal(text):
    with pytest.raises(SettingError) as caught:
        plan_from_yaml(text if isinstance(text, bytes) else text.encode())
    return str(caught.value)


# -- there and back ------------------------------------------------------------------------------------------------

WORDS = st.text(max_size=30)
RATES = st.none() | st.floats(1e-6, 1e9)
VALUES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | WORDS | st.lists(WORDS, max_size=3)
CHANGES = st.builds(
    Change,
    scope=st.sampled_from(["dataloader", "loader", "data", "step"]),
    name=WORDS,
    now=VALUES,
    then=VALUES,
    reason=WORDS,
    gain=st.none() | st.floats(-0.99, 99),
    cost=WORDS,
)
LOADERS = st.fixed_dictionaries(
    {},
    optional={
        "num_workers": st.integers(0, 99),
        "prefetch_factor": st.none() | st.integers(1, 99),
        "pin_memory": st.booleans(),
        "in_order": st.booleans(),
        "multiprocessing_context": st.sampled_from([None, "fork", "spawn", "forkserver"]),
        "worker_threads": st.integers(1, 8),
    },
)
PLANS = st.builds(
    Plan,
    source=st.sampled_from(["recording", "probes", "dataset"]),
    fingerprint=st.dictionaries(WORDS, VALUES, max_size=3),
    profile=st.sampled_from(["balanced", "speed", "memory"]),
    samples_s=RATES,
    planned_samples_s=RATES,
    limits=st.lists(st.builds(ThroughputLimit, name=WORDS, samples_s=st.floats(1e-6, 1e9)), max_size=3).map(tuple),
    most_gain=st.none() | st.floats(0, 99),
    memory_bytes=st.none() | st.integers(0, 2**50),
    changes=st.lists(CHANGES, max_size=3).map(tuple),
    dataloader=LOADERS,
    loader=st.dictionaries(WORDS, VALUES, max_size=3),
    notes=st.lists(WORDS, max_size=3).map(tuple),
)


@given(PLANS)
def test_what_is_written_is_read(plan):
    assert plan_from_yaml(plan_to_yaml(plan).encode()) == plan


def test_a_file_is_the_plan_and_says_what_to_do_with_it(tmp_path):
    path = tmp_path / "mine.yaml"
    save_plan(FULL, path)
    assert load_plan(path) == FULL
    text = path.read_text(encoding="utf-8")
    assert "penstock verify mine.yaml -- python train.py" in text
    assert "图片" in text


def test_a_document_has_the_sections_in_the_order_of_reading():
    sections = ["source", "profile", "fingerprint", "prediction", "changes", "dataloader", "loader", "notes"]
    assert list(plan_document(FULL)) == ["penstock_plan", *sections]
    assert plan_document(FULL)["prediction"]["limits"][0] == {"name": "cpu", "samples_s": 74.0}
    assert "gain" not in plan_document(FULL)["changes"][2]


def test_the_smallest_plan_and_sections_that_were_emptied_by_hand():
    assert plan_from_yaml(SMALLEST.encode()) == Plan(source="recording", fingerprint={})
    emptied = SMALLEST + "dataloader:\nchanges:\nprediction:\nnotes:\n"
    assert plan_from_yaml(emptied.encode()) == Plan(source="recording", fingerprint={})


def test_what_may_be_set_is_what_can_be_applied():
    assert set(DataLoaderSettings.__struct_fields__) == PLAN_SETTINGS


# -- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is not a plan", "penstock plan"]),
        ("just words", ["is not a plan"]),
        ("num_workers: 4", ["is not a plan", "penstock_plan is missing"]),
        ("penstock_plan: 2\nnew_thing: 1", ["a newer penstock", "version 2", "Update penstock"]),
        ("penstock_plan: 0", ["no version"]),
        ("penstock_plan: one", ["'one' is no version"]),
        ("penstock_plan: true", ["no version"]),
        ("penstock_plan: 1", ["missing required field `source`"]),
        ("penstock_plan: 1\nsource: stars", ["source: ", "stars"]),
        (SMALLEST + "dataloder: {}", ["dataloder: is not known", "Perhaps dataloader is meant"]),
        (SMALLEST + "dataloader: {num_worker: 4}", ["dataloader.num_worker: is not known", "num_workers is meant"]),
        (SMALLEST + "dataloader: {batch_size: 4}", ["dataloader.batch_size: is not known"]),
        (SMALLEST + "dataloader: {num_workers: six}", ["dataloader.num_workers: Expected `int`"]),
        (SMALLEST + "dataloader: {num_workers: -1}", ["dataloader.num_workers: ", ">= 0"]),
        (SMALLEST + "dataloader: {num_workers: true}", ["dataloader.num_workers: Expected `int`"]),
        (SMALLEST + "dataloader: {multiprocessing_context: thread}", ["dataloader.multiprocessing_context: "]),
        (SMALLEST + "dataloader: [1]", ["dataloader: holds no keys"]),
        (SMALLEST + "prediction: {sample_s: 1}", ["prediction.sample_s: is not known", "samples_s is meant"]),
        (SMALLEST + "prediction: {samples_s: much}", ["prediction.samples_s: Expected `float"]),
        (SMALLEST + "prediction: {samples_s: -1.0}", ["prediction.samples_s: -1.0 is not at least 0"]),
        (SMALLEST + "prediction: {limits: [{name: cpu}]}", ["prediction.limits[0]: ", "samples_s"]),
        (SMALLEST + "prediction: {limits: [3]}", ["prediction.limits[0]: holds no keys"]),
        (SMALLEST + "prediction: {limits: 3}", ["prediction.limits: Expected `array`"]),
        (SMALLEST + "changes: [{scop: step}]", ["changes[0].scop: is not known", "scope is meant"]),
        (SMALLEST + "changes: [{scope: step}]", ["changes[0]: ", "missing required field"]),
        (SMALLEST + "changes: 5", ["changes: Expected `array`"]),
        (SMALLEST + "changes: [{scope: step, name: a, now: 1, then: 2, reason: r, gain: -2}]", ["changes[0].gain: -2"]),
        (SMALLEST + "notes: [1]", ["notes[0]: Expected `str`"]),
        (SMALLEST + "profile: fast", ["profile: ", "fast"]),
        (SMALLEST + "fingerprint: 7", ["fingerprint: Expected `object`"]),
        (SMALLEST + "loader: !!python/name:os.system {}", ["tags are not allowed"]),
        (SMALLEST + "notes: &a [x]\nloader: {k: *a}", ["anchors and aliases"]),
        (SMALLEST + "profile: speed\nprofile: memory", ["'profile' is repeated"]),
        (SMALLEST + "#" * MAX_BYTES, ["is not a plan"]),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text, words):
    said = refusal(text)
    assert [word for word in words if word not in said] == [], said


def test_an_error_names_the_file(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(SMALLEST + "profil: speed\n")
    with pytest.raises(SettingError, match=r"p\.yaml: profil: is not known.*Perhaps profile is meant"):
        load_plan(path)


@pytest.mark.parametrize("path", ["missing.yaml", ".", "nul\x00.yaml"])
def test_a_file_that_cannot_be_read_is_a_setting_that_cannot_be_used(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="cannot be read"):
        load_plan(path)


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(StorageError, match="cannot write"):
        save_plan(FULL, tmp_path / "no" / "plan.yaml")


@pytest.mark.parametrize(
    "broken",
    [
        replace(FULL, samples_s=float("nan")),
        replace(FULL, limits=(ThroughputLimit(name="cpu", samples_s=float("inf")),)),
        replace(FULL, loader={"transform": object()}),
        replace(FULL, dataloader={"workers": 3}),
        replace(FULL, notes=(7,)),
    ],
)
def test_a_plan_that_could_not_be_read_is_not_written(tmp_path, broken):
    with pytest.raises(SettingError):
        save_plan(broken, tmp_path / "plan.yaml")
    assert not (tmp_path / "plan.yaml").exists()


# -- damage --------------------------------------------------------------------------------------------------------


def read_or_refused(data):
    try:
        plan = plan_from_yaml(data)
    except SettingError as error:
        return str(error)
    assert isinstance(plan, Plan)
    return plan_to_yaml(plan)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    assert refusal(data)


TOKENS = ["null", "-1", ".inf", ".nan", "!!binary x", "&a", "*a", "{", "}", "[", "]", ":", "- ", "\n", "  ", "\t", "'",
          '"', "#", "|", ">", "? ", "\x00", "9" * 400, "true", "2024-01-01", "0x1f", "1:30", "<<", "%"]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_with_damage_is_read_or_refused(seed):
    dice = random.Random(seed)
    whole = plan_to_yaml(FULL)
    for _ in range(40):
        text = whole
        for _ in range(dice.randint(1, 4)):
            at, length = dice.randrange(len(text)), dice.choice([0, 1, 1, 5, 40])
            text = text[:at] + dice.choice(TOKENS) + text[at + length :]
        assert read_or_refused(text.encode())
