"""scripts/check_words.py and scripts/check_commit_subject.py."""

import importlib.util
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
BANNED = {"widget": "part", "bolt-on": "extension"}
"""Words that are refused in these tests, with the words to use instead."""


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_words = load("check_words")
check_commit_subject = load("check_commit_subject")


@pytest.mark.parametrize(
    "source",
    [
        "turn_widget = 1\n",
        "turnWidget = 1\n",
        "x = 1  # the widget\n",
        'x = "widget"\n',
        'x = f"widget {1}"\n',
        "'''A.\n\nwidget'''\n",
    ],
)
def test_a_banned_word_is_found_in_names_comments_and_strings(source):
    problems = check_words.check_python(source, BANNED)
    assert [problem for _, problem in problems] == ["'widget': use part"]


def test_a_banned_word_with_a_hyphen_is_found():
    assert check_words.check_python("# a bolt-on\n", BANNED) == [(1, "'bolt-on': use extension")]


def test_longer_words_and_exempt_lines_are_accepted():
    assert check_words.check_python("widgety = 1\nwidget = 2  # glossary: allow\n", BANNED) == []


def test_a_docstring_that_begins_as_a_fragment_is_found():
    problems = check_words.check_python('def f():\n    """Of a loader."""\n', BANNED)
    assert problems == [(2, "docstring begins as a fragment: 'Of a loader.'")]
    assert check_words.check_python('def f():\n    """Return a loader."""\n', BANNED) == []


def test_markdown_is_checked_outside_of_code_and_links():
    page = "The widget.\n```\nwidget\n```\n`widget` and [a link](widget.md)\n"
    assert check_words.check_markdown(page, BANNED) == [(1, "'widget': use part")]


def test_the_glossary_lists_words_with_replacements():
    banned = check_words.banned_words(check_words.GLOSSARY.read_text(encoding="utf-8"))
    assert banned["dice"] == "RNG, random generator"  # glossary: allow
    assert len(banned) > 40


def test_the_command_prints_problems_and_returns_1(tmp_path, capsys):
    source = tmp_path / "source.py"
    source.write_text("dice = 1\n")  # glossary: allow
    assert check_words.main([str(tmp_path)]) == 1
    expected = f"{source}:1: 'dice': use RNG, random generator\n1 problems found\n"  # glossary: allow
    assert capsys.readouterr().out == expected
    source.write_text("rng = 1\n")
    assert check_words.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("Add a field\n\nIt was missing.\n", None),
        ("Add a field\n# a comment of git\n", None),
        ("x" * 72, None),
        ("x" * 73, "the subject has 73 characters"),
        ("Add a field\nIt was missing.\n", "the line after the subject must be empty"),
        ("\n", "the subject is empty"),
    ],
)
def test_the_subject_and_the_second_line_of_a_commit_message_are_checked(message, problem):
    found = check_commit_subject.problem_of(message)
    assert found is None if problem is None else problem in found
