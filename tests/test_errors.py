"""The error tree: fields, texts, and pickling between processes."""

import pickle

import pytest

from penstock import errors
from penstock.errors import (
    DecodeError,
    GuardError,
    IndexFileError,
    IndexVersionError,
    PairingError,
    PenstockError,
    RecordingError,
    SampleError,
    SettingError,
    ShardError,
    StorageError,
    TarError,
    WorkerCrash,
    printable,
)

ALL = [
    PenstockError,
    SettingError,
    StorageError,
    ShardError,
    TarError,
    IndexFileError,
    IndexVersionError,
    PairingError,
    SampleError,
    GuardError,
    DecodeError,
    RecordingError,
    WorkerCrash,
]


def test_the_list_of_this_file_is_the_whole_tree():
    found = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PenstockError)}
    assert found == set(ALL)


def test_the_tree_drawn_in_the_docstring_names_every_class():
    assert [kind.__name__ for kind in ALL if kind.__name__ not in errors.__doc__] == []


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        (SettingError, ValueError),
        (StorageError, OSError),
        (TarError, ShardError),
        (IndexFileError, ShardError),
        (PairingError, ShardError),
        (GuardError, SampleError),
        (DecodeError, SampleError),
    ],
)
def test_an_error_can_be_caught_by_its_parent(kind, parent):
    assert issubclass(kind, parent)


def test_the_text_has_the_reason_the_place_and_the_advice():
    error = TarError("broken", shard="a.tar", member="0.jpg", offset=512, stage="scan", advice="Copy it again.")
    assert str(error) == "broken [shard a.tar, member 0.jpg, offset 512, stage scan]. Copy it again."


def test_unknown_fields_are_left_out_of_the_text():
    assert str(TarError("broken")) == "broken"
    assert str(TarError("broken", offset=0)) == "broken [offset 0]"


def test_at_sets_unknown_fields_and_keeps_the_others():
    error = TarError("broken", member="0.jpg", offset=0)
    assert error.at(shard="a.tar", member="other", offset=9, stage="scan") is error
    assert error.where() == {"shard": "a.tar", "member": "0.jpg", "offset": 0, "stage": "scan"}


@pytest.mark.parametrize("kind", ALL)
def test_an_error_survives_pickling(kind):
    error = kind("broken", shard="a.tar", member="0.jpg", offset=0, stage="scan", advice="Copy it again.")
    error.add_note("seen twice")
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is kind
    assert vars(restored) == vars(error)
    assert str(restored) == str(error)


def test_control_characters_of_a_member_name_do_not_reach_the_terminal():
    error = TarError("broken", member="a\x1b[31m\nb\u202e.jpg")
    assert str(error) == "broken [member a\\x1b[31m\\nb\\u202e.jpg]"
    assert error.member == "a\x1b[31m\nb\u202e.jpg"


def test_printable_keeps_other_alphabets_and_escapes_lone_surrogates():
    assert printable("картина-图.jpg") == "картина-图.jpg"
    assert printable("\udcff") == "\\udcff"


def test_a_question_as_advice_ends_as_one():
    assert str(PenstockError("nothing", advice="Is the disk full?")) == "nothing. Is the disk full?"


def test_a_stage_alone_is_shown_only_where_data_was_on_its_path():
    assert str(SettingError("no such column", stage="pattern")) == "no such column"
    assert str(DecodeError("broken", stage="decode")) == "broken [stage decode]"
    assert SettingError("no such column", stage="pattern").where() == {"stage": "pattern"}


def test_advice_is_printable_too():
    assert str(PenstockError("no", advice="There are .\x1b[31mred")).isprintable()
