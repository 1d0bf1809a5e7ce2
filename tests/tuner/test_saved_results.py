import json
from dataclasses import dataclass

import pytest

from penstock.tuner import saved_results as memo
from penstock.tuner.result import MeasuredSetting, Setting, TuningFindings

FOUND = TuningFindings(
    kwargs={"num_workers": 2, "prefetch_factor": 2},
    samples_s=12.5,
    default_samples_s=None,
    measured=(MeasuredSetting(setting=Setting(2), how="measured", samples_s=12.5, runs=3),),
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


def key(dataset=None, **asked):
    return memo.key_of(dataset or Data(), asked)


def kept_file(private_cache):
    (file,) = (private_cache / "tune").iterdir()
    return file


def test_findings_are_kept_for_the_same_dataset_and_question():
    memo.store(key(batch_size=8), FOUND)
    assert memo.load(key(batch_size=8)) == FOUND


@pytest.mark.parametrize(
    "other",
    [
        lambda: key(batch_size=9),
        lambda: key(Data("b"), batch_size=8),
        lambda: key(Data(files=["x"]), batch_size=8),
        lambda: key(Wrapped(Data()), batch_size=8),
    ],
)
def test_another_dataset_or_question_has_no_findings(other):
    memo.store(key(batch_size=8), FOUND)
    assert memo.load(other()) is None


def test_what_a_wrapped_dataset_is_made_of_counts():
    memo.store(key(Wrapped(Data("a"))), FOUND)
    assert memo.load(key(Wrapped(Data("a")))) == FOUND
    assert memo.load(key(Wrapped(Data("b")))) is None


def test_what_a_dataset_without_a_dictionary_holds_counts():
    assert key(Slotted("a")) == key(Slotted("a"))
    assert key(Slotted("a")) != key(Slotted("b"))
    assert key(SlottedInside("a")) != key(SlottedInside("b"))


def test_a_dataset_that_holds_itself_has_a_key():
    data = Data()
    data.me = data
    data.files = [data.files]
    data.files.append(data.files)
    assert key(data) == key(data)


def test_another_machine_has_no_findings(monkeypatch):
    memo.store(key(), FOUND)
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert memo.load(key()) is None


def test_another_way_of_tuning_has_no_findings(monkeypatch):
    memo.store(key(), FOUND)
    monkeypatch.setattr(memo, "VERSION", memo.VERSION + 1)
    assert memo.load(key()) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b"{}", b"[" * 100_000])
def test_a_damaged_file_is_no_findings(private_cache, damage):
    memo.store(key(), FOUND)
    kept_file(private_cache).write_bytes(damage)
    assert memo.load(key()) is None


def test_a_file_of_any_size_is_not_read(private_cache):
    memo.store(key(), FOUND)
    file = kept_file(private_cache)
    file.write_bytes(file.read_bytes() + b" " * (1 << 20))
    assert memo.load(key()) is None


def test_findings_of_another_key_under_our_name_are_not_believed(private_cache):
    memo.store(key(), FOUND)
    file = kept_file(private_cache)
    document = json.loads(file.read_bytes())
    document["key"]["asked"] = {"batch_size": 99}
    file.write_text(json.dumps(document))
    assert memo.load(key()) is None


def test_old_findings_are_measured_again(monkeypatch):
    memo.store(key(), FOUND)
    now = memo.time.time()
    monkeypatch.setattr(memo.time, "time", lambda: now + memo.MAX_AGE_S + 1)
    assert memo.load(key()) is None


def test_where_nothing_can_be_kept_nothing_is_lost(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    memo.store(key(), FOUND)
    assert memo.load(key()) is None


def test_another_number_of_ranks_on_this_machine_has_no_findings(monkeypatch):
    memo.store(key(), FOUND)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert memo.load(key()) is None
