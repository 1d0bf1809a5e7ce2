"""The two scripts that check words and commit subjects."""

import importlib.util
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
BANNED = {"dice": "RNG", "hand-over": "transfer"}


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
        "roll_dice = 1\n",
        "rollDice = 1\n",
        "x = 1  # the dice\n",
        'x = "dice"\n',
        'x = f"dice {1}"\n',
        "'''A.\n\ndice'''\n",
    ],
)
def test_a_word_is_found_in_names_comments_and_strings(source):
    problems = check_words.check_python(source, BANNED)
    assert [problem for _, problem in problems] == ["'dice': use RNG"]


def test_hyphenated_words_are_found_whole():
    assert check_words.check_python("# a hand-over\n", BANNED) == [(1, "'hand-over': use transfer")]


def test_other_words_and_exempt_lines_pass():
    assert check_words.check_python("dicey = 1\ndice = 2  # glossary: allow\n", BANNED) == []


def test_a_docstring_that_begins_as_a_fragment_is_found():
    problems = check_words.check_python('def f():\n    """Of a loader."""\n', BANNED)
    assert problems == [(2, "docstring begins as a fragment: 'Of a loader.'")]
    assert check_words.check_python('def f():\n    """Return a loader."""\n', BANNED) == []


def test_markdown_is_checked_outside_code():
    page = "The dice.\n```\ndice\n```\n`dice` and [a link](dice.md)\n"
    assert check_words.check_markdown(page, BANNED) == [(1, "'dice': use RNG")]


def test_the_glossary_lists_words_with_replacements():
    banned = check_words.banned_words(check_words.GLOSSARY.read_text(encoding="utf-8"))
    assert banned["dice"] == "RNG, random generator"
    assert len(banned) > 40


def test_the_command_prints_problems_and_fails(tmp_path, capsys):
    bad = tmp_path / "bad.py"
    bad.write_text("dice = 1\n")
    assert check_words.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{bad}:1: 'dice': use RNG, random generator\n1 problems found\n"
    bad.write_text("rng = 1\n")
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
def test_commit_messages(message, problem):
    found = check_commit_subject.problem_of(message)
    assert found is None if problem is None else problem in found
