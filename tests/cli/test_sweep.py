"""`penstock sweep` on steps that a module in the working directory makes."""

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.sweep import sweep
from penstock.errors import SettingError

app = typer.Typer(rich_markup_mode=None)
app.command()(sweep)

STEPS = """
import time

def make_step():
    def step(batch):
        if len(batch) > 8:
            raise MemoryError
        time.sleep(0.002 if len(batch) == 8 else 0.03)  # so much faster that a busy machine cannot hide it
    return step, lambda size: [0] * size

def bad_step():
    def step(batch):
        raise ValueError("no such layer")
    return step, lambda size: [0] * size

def one():
    return print

def raising():
    raise FileNotFoundError("no weights here")
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "penstock_swept_steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("penstock_swept_steps", None)


def run(name, *arguments, columns="200"):
    command = [f"penstock_swept_steps:{name}", "--duration", "0.03", *map(str, arguments)]
    return CliRunner().invoke(app, command, env={"COLUMNS": columns})


def test_rates_the_knee_and_the_scaled_learning_rate_are_printed():
    ran = run("make_step", "--batch-size", 2, "--learning-rate", 0.1, "--dataset-samples", 80)
    assert ran.exit_code == 0, ran.exception
    assert "8 ← knee" in ran.stdout
    assert "out of memory" in ran.stdout
    assert "8 is the knee" in ran.stdout
    words = " ".join(ran.stdout.split())
    assert "Learning rate, from batches of 2 to 8" in words
    assert "linear (SGD) 0.4 50" in words
    assert "square root (Adam) 0.2 50" in words


def test_a_smaller_size_needs_accumulation():
    words = " ".join(run("make_step", "--batch-size", 32).stdout.split())
    assert "To train as with batches of 32: 4 batches of 8 for each optimizer step" in words
    assert "Learning rate" not in words


def test_json_has_all_results():
    document = json.loads(run("make_step", "--json", "--batch-sizes", "4, 8,16", "--batch-size", 16).stdout)
    assert [row["size"] for row in document["rows"]] == [4, 8, 16]
    assert document["rows"][2]["failed"] == "out of memory"
    assert (document["knee"], document["best"], document["accumulation"]) == (8, 8, 2)
    assert json.loads(run("make_step", "--json", "--batch-sizes", "4").stdout)["learning_rates"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bad_step",), "the step ran at no batch size; with 1: ValueError: no such layer"),
        (("one",), "a builtin_function_or_method is not a pair of functions"),
        (("raising",), "raised FileNotFoundError: no weights here"),
        (("nothing",), "cannot be imported"),
        (("make_step", "--batch-sizes", "8,many"), "not whole numbers"),
        (("make_step", "--batch-sizes", "0"), "not whole numbers above 0"),
        (("make_step", "--learning-rate", "0.1"), "for which batch size"),
        (("make_step", "--batch-size", "8", "--learning-rate", "-1"), "learning_rate=-1.0 is not above 0"),
        (("make_step", "--device", "tpu"), "'tpu' is not known"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(arguments, words):
    ran = run(*arguments)
    assert isinstance(ran.exception, SettingError)
    assert words in str(ran.exception)


def test_the_help_has_an_example_within_80_columns():
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    assert "penstock sweep mypackage.train:make_step --batch-size 32" in text
    assert "Exit code" in text
    assert max(map(len, text.splitlines())) <= 80
