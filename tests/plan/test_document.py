"""Plans as YAML files: writing, reading, errors that name the key, and the settings that a script takes from them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.plan import Change, Plan, ThroughputLimit
from penstock.errors import SettingError
from penstock.plan.document import (
    MAX_BYTES,
    DataLoaderSettings,
    dataloader_kwargs,
    load_plan,
    load_plan_for_this_machine,
    loader_settings,
    plan_document,
    plan_from_yaml,
    plan_to_yaml,
    save_plan,
)
from penstock.plan.fingerprint import fingerprint
from penstock.watcher.machine.facts import machine_facts
from penstock.watcher.script.apply_plan import PLAN_SETTINGS, LimitThreads

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
    """Return the error that reading this text raises."""
    with pytest.raises(SettingError) as caught:
        plan_from_yaml(text if isinstance(text, bytes) else text.encode())
    return str(caught.value)


# -- writing and reading -------------------------------------------------------------------------------------------

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
DATALOADER_SETTINGS = st.fixed_dictionaries(
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
    dataloader=DATALOADER_SETTINGS,
    loader=st.dictionaries(WORDS, VALUES, max_size=3),
    notes=st.lists(WORDS, max_size=3).map(tuple),
)


@given(PLANS)
def test_a_plan_that_is_written_and_read_is_equal(plan):
    assert plan_from_yaml(plan_to_yaml(plan).encode()) == plan


def test_a_plan_file_holds_the_plan_and_the_command_that_verifies_it(tmp_path):
    path = tmp_path / "mine.yaml"
    save_plan(FULL, path)
    assert load_plan(path) == FULL
    text = path.read_text(encoding="utf-8")
    assert "penstock verify mine.yaml -- python train.py" in text
    assert "图片" in text


def test_the_sections_of_a_document_are_in_order():
    sections = ["source", "profile", "fingerprint", "prediction", "changes", "dataloader", "loader", "notes"]
    assert list(plan_document(FULL)) == ["penstock_plan", *sections]
    assert plan_document(FULL)["prediction"]["limits"][0] == {"name": "cpu", "samples_s": 74.0}
    assert "gain" not in plan_document(FULL)["changes"][2]


def test_missing_and_empty_sections_are_accepted():
    assert plan_from_yaml(SMALLEST.encode()) == Plan(source="recording", fingerprint={})
    emptied = SMALLEST + "dataloader:\nchanges:\nprediction:\nnotes:\n"
    assert plan_from_yaml(emptied.encode()) == Plan(source="recording", fingerprint={})


def test_the_dataloader_section_has_the_settings_that_apply_plan_can_replace():
    assert set(DataLoaderSettings.__struct_fields__) == PLAN_SETTINGS


# -- files that are refused ----------------------------------------------------------------------------------------


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
def test_a_wrong_value_is_refused_with_its_place(text, words):
    message = refusal(text)
    assert [word for word in words if word not in message] == [], message


def test_an_error_names_the_file(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(SMALLEST + "profil: speed\n")
    with pytest.raises(SettingError, match=r"p\.yaml: profil: is not known.*Perhaps profile is meant"):
        load_plan(path)


@pytest.mark.parametrize("path", ["missing.yaml", ".", "nul\x00.yaml"])
def test_an_unreadable_file_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="cannot be read"):
        load_plan(path)


def test_a_plan_that_cannot_be_written_is_refused_with_advice(tmp_path):
    with pytest.raises(SettingError, match=r"cannot write .*Name a file in a folder that exists"):
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
def test_a_plan_that_could_not_be_read_back_is_not_written(tmp_path, broken):
    with pytest.raises(SettingError):
        save_plan(broken, tmp_path / "plan.yaml")
    assert not (tmp_path / "plan.yaml").exists()


# -- damaged files -------------------------------------------------------------------------------------------------


def yaml_or_error(data):
    """Return the plan that was read, as YAML again, or the error."""
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
def test_a_damaged_plan_is_read_or_refused(seed):
    rng = random.Random(seed)
    undamaged = plan_to_yaml(FULL)
    for _ in range(40):
        text = undamaged
        for _ in range(rng.randint(1, 4)):
            start, length = rng.randrange(len(text)), rng.choice([0, 1, 1, 5, 40])
            text = text[:start] + rng.choice(TOKENS) + text[start + length :]
        assert yaml_or_error(text.encode())


# -- settings for a script -----------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a plan for a machine, by default this one, and returns its path."""

    def write(machine=None, **sections):
        made_for = fingerprint(machine_facts()) if machine is None else {"machine": machine}
        save_plan(Plan(source="recording", fingerprint=made_for, **sections), tmp_path / "plan.yaml")
        return tmp_path / "plan.yaml"

    return write


def init_worker(worker):
    return worker


def test_torch_accepts_the_dataloader_settings_of_a_plan(write, caplog):
    torch = pytest.importorskip("torch")
    path = write(dataloader={"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "pin_memory": False})
    loader = torch.utils.data.DataLoader([1, 2, 3], batch_size=2, **dataloader_kwargs(path))
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    assert caplog.messages == []


def test_a_limit_of_threads_becomes_a_worker_init_fn_around_the_scripts_own(write):
    path = write(dataloader={"num_workers": 1, "worker_threads": 1})
    kwargs = dataloader_kwargs(path, worker_init_fn=init_worker)
    assert kwargs.keys() == {"num_workers", "worker_init_fn"}
    limit = kwargs["worker_init_fn"]
    assert isinstance(limit, LimitThreads)
    assert (limit.threads, limit.init_fn) == (1, init_worker)


def test_without_a_limit_of_threads_the_scripts_worker_init_fn_stays(write):
    path = write(dataloader={"num_workers": 1})
    assert dataloader_kwargs(path, worker_init_fn=init_worker) == {"num_workers": 1, "worker_init_fn": init_worker}
    assert dataloader_kwargs(path) == {"num_workers": 1}


def test_a_plan_for_another_machine_is_used_with_a_warning(write, caplog):
    path = write({"usable_cores": 10**6}, dataloader={"num_workers": 1}, loader={"reading": {"num_readers": 2}})
    assert dataloader_kwargs(path) == {"num_workers": 1}
    assert "counts on 1000000 usable cores" in caplog.text
    assert loader_settings(path) == {"reading": {"num_readers": 2}}


def test_a_plan_without_a_machine_is_used_with_a_warning(write, caplog):
    settings = {"reading": {"num_readers": 2}}
    assert load_plan_for_this_machine(write({}, loader=settings)).loader == settings
    assert "does not say for which machine" in caplog.text
