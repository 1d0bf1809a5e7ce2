"""Results of tunings that are stored between runs."""

import json
from dataclasses import dataclass

import pytest

from penstock.tuner import saved_results
from penstock.tuner.result import MeasuredSetting, TuningFindings, WorkerSettings

FOUND = TuningFindings(
    kwargs={"num_workers": 2, "prefetch_factor": 2},
    samples_s=12.5,
    default_samples_s=None,
    measured=(MeasuredSetting(setting=WorkerSettings(2), how="measured", samples_s=12.5, runs=3),),
    reasons=("because",),
    seconds=3.0,
)


class Data:
    def __init__(self, root="a", files=()):
        self.root = root
        self.files = list(files)

    def __len__(self):
        return 10


class Wrapped:
    def __init__(self, inner):
        self.inner = inner


@dataclass(slots=True)
class Slotted:
    root: str


class SlottedInside:
    __slots__ = ("__root",)

    def __init__(self, root):
        self.__root = root


def key(dataset=None, **request):
    return saved_results.tuning_key(dataset or Data(), request)


def stored_file(private_cache):
    (file,) = (private_cache / "tune").iterdir()
    return file


def test_findings_are_found_for_the_same_dataset_and_request():
    saved_results.store_findings(key(batch_size=8), FOUND)
    assert saved_results.load_findings(key(batch_size=8)) == FOUND


@pytest.mark.parametrize(
    "other",
    [
        lambda: key(batch_size=9),
        lambda: key(Data("b"), batch_size=8),
        lambda: key(Data(files=["x"]), batch_size=8),
        lambda: key(Wrapped(Data()), batch_size=8),
    ],
)
def test_another_dataset_or_request_has_no_findings(other):
    saved_results.store_findings(key(batch_size=8), FOUND)
    assert saved_results.load_findings(other()) is None


def test_attributes_of_a_wrapped_dataset_are_part_of_the_key():
    saved_results.store_findings(key(Wrapped(Data("a"))), FOUND)
    assert saved_results.load_findings(key(Wrapped(Data("a")))) == FOUND
    assert saved_results.load_findings(key(Wrapped(Data("b")))) is None


def test_slots_of_a_dataset_are_part_of_the_key():
    assert key(Slotted("a")) == key(Slotted("a"))
    assert key(Slotted("a")) != key(Slotted("b"))
    assert key(SlottedInside("a")) != key(SlottedInside("b"))


def test_dataset_that_refers_to_itself_has_a_key():
    data = Data()
    data.itself = data
    data.files = [data.files]
    data.files.append(data.files)
    assert key(data) == key(data)


def test_another_machine_has_no_findings(monkeypatch):
    saved_results.store_findings(key(), FOUND)
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert saved_results.load_findings(key()) is None


def test_another_version_of_tuning_has_no_findings(monkeypatch):
    saved_results.store_findings(key(), FOUND)
    monkeypatch.setattr(saved_results, "VERSION", saved_results.VERSION + 1)
    assert saved_results.load_findings(key()) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b"{}", b"[" * 100_000])
def test_damaged_file_is_ignored(private_cache, damage):
    saved_results.store_findings(key(), FOUND)
    stored_file(private_cache).write_bytes(damage)
    assert saved_results.load_findings(key()) is None


def test_file_that_is_too_large_is_ignored(private_cache):
    saved_results.store_findings(key(), FOUND)
    file = stored_file(private_cache)
    file.write_bytes(file.read_bytes() + b" " * (1 << 20))
    assert saved_results.load_findings(key()) is None


def test_findings_of_another_key_in_the_file_are_ignored(private_cache):
    saved_results.store_findings(key(), FOUND)
    file = stored_file(private_cache)
    document = json.loads(file.read_bytes())
    document["key"]["asked"] = {"batch_size": 99}
    file.write_text(json.dumps(document))
    assert saved_results.load_findings(key()) is None


def test_old_findings_are_ignored(monkeypatch):
    saved_results.store_findings(key(), FOUND)
    now = saved_results.time.time()
    monkeypatch.setattr(saved_results.time, "time", lambda: now + saved_results.MAX_AGE_S + 1)
    assert saved_results.load_findings(key()) is None


def test_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    saved_results.store_findings(key(), FOUND)
    assert saved_results.load_findings(key()) is None


def test_another_number_of_ranks_on_this_machine_has_no_findings(monkeypatch):
    saved_results.store_findings(key(), FOUND)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert saved_results.load_findings(key()) is None
