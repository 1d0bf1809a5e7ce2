"""The error tree: fields, words, and the way between processes."""

import pickle

import pytest

from penstock import errors
from penstock.errors import (
    DecodeError,
    GuardError,
    IndexFileError,
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
    PairingError,
    SampleError,
    GuardError,
    DecodeError,
    RecordingError,
    WorkerCrash,
]


def test_the_list_above_is_the_whole_tree():
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
def test_branches_can_be_caught_by_their_parent(kind, parent):
    assert issubclass(kind, parent)


def test_the_text_says_what_where_and_what_to_do():
    error = TarError("broken", shard="a.tar", member="0.jpg", offset=512, stage="scan", advice="Copy it again.")
    assert str(error) == "broken [shard a.tar, member 0.jpg, offset 512, stage scan]. Copy it again."


def test_unknown_fields_leave_no_trace_in_the_text():
    assert str(TarError("broken")) == "broken"
    assert str(TarError("broken", offset=0)) == "broken [offset 0]"


def test_at_fills_in_what_is_unknown_and_keeps_what_is_known():
    error = TarError("broken", member="0.jpg", offset=0)
    assert error.at(shard="a.tar", member="other", offset=9, stage="scan") is error
    assert error.where() == {"shard": "a.tar", "member": "0.jpg", "offset": 0, "stage": "scan"}


@pytest.mark.parametrize("kind", ALL)
def test_an_error_survives_the_way_between_processes(kind):
    error = kind("broken", shard="a.tar", member="0.jpg", offset=0, stage="scan", advice="Copy it again.")
    error.add_note("seen twice")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert vars(back) == vars(error)
    assert str(back) == str(error)


def test_control_characters_of_a_member_name_do_not_reach_the_terminal():
    error = TarError("broken", member="a\x1b[31m\nb\u202e.jpg")
    assert str(error) == "broken [member a\\x1b[31m\\nb\\u202e.jpg]"
    assert error.member == "a\x1b[31m\nb\u202e.jpg"


def test_printable_leaves_other_alphabets_alone_and_shows_lone_surrogates():
    assert printable("картина-图.jpg") == "картина-图.jpg"
    assert printable("\udcff") == "\\udcff"
