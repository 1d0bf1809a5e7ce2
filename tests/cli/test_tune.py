"""`penstock tune` on factories in a module of the working directory."""

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.tune import tune
from penstock.errors import SampleError, SettingError

pytest.importorskip("torch")

app = typer.Typer()
app.command()(tune)

FACTORIES = """
import time
from torch.utils.data import DataLoader

class Slow:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        time.sleep(0.003)
        return index

class Bad(Slow):
    def __getitem__(self, index):
        raise ValueError(f"item {index} is bad")

def make_dataset():
    return Slow()

def make_loader():
    return DataLoader(Slow(), batch_size=8)

def bad():
    return Bad()

def raising():
    raise FileNotFoundError("no data here")

number = 3
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "penstock_tuned_factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("penstock_tuned_factories", None)


def run(name, *arguments, columns="200"):
    named = name if ":" in name else f"penstock_tuned_factories:{name}"
    return CliRunner().invoke(app, [named, *map(str, arguments)], env={"COLUMNS": columns})


def test_a_dataset_is_tuned_and_the_arguments_are_printed():
    ran = run("make_dataset", "--batch-size", 4, "--duration", 4, "--step-ms", 1)
    assert ran.exit_code == 0, ran.exception
    assert "torch's default" in ran.stdout
    assert "DataLoader(…, num_workers=" in ran.stdout
    assert "computing" in ran.stdout
    assert "remembered" in run("make_dataset", "--batch-size", 4, "--duration", 4, "--step-ms", 1).stdout


def test_a_loader_is_tuned_and_printed_as_json():
    ran = run("make_loader", "--duration", 4, "--json")
    document = json.loads(ran.stdout)
    assert document["kwargs"]["num_workers"] >= 0
    assert document["samples_s"] >= document["default_samples_s"]
    assert {row["setting"]["workers"] for row in document["measured"]} >= {0}
    assert document["remembered"] is False


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("make_dataset", "how large batches are"),
        ("nothing:at_all", "cannot be imported"),
        ("no_such_function", "cannot be imported"),
        ("number", "is not a function"),
        ("raising", "raised FileNotFoundError: no data here"),
    ],
)
def test_an_unusable_factory_is_refused_with_the_reason(name, words):
    ran = run(name)
    assert isinstance(ran.exception, SettingError)
    assert words in str(ran.exception)


def test_a_name_without_a_function_is_refused():
    ran = CliRunner().invoke(app, ["package.module"])
    assert isinstance(ran.exception, SettingError)
    assert "package.module:function" in str(ran.exception)


def test_a_dataset_item_that_raises_is_named():
    ran = run("bad", "--batch-size", 2, "--duration", 2)
    assert isinstance(ran.exception, SampleError)
    assert "item 0 of the dataset" in str(ran.exception)


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("penstock.cli.arguments.find_spec", lambda name: None)
    ran = run("make_dataset", "--batch-size", 2)
    assert "pip install 'penstock[torch]'" in str(ran.exception)


@pytest.mark.parametrize("wrong", [("--batch-size", 0), ("--duration", 0), ("--profile", "best"), ("--step-ms", -1)])
def test_invalid_options_exit_with_2(wrong):
    assert run("make_dataset", *wrong).exit_code == 2


def test_the_help_has_an_example_within_80_columns():
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    assert "penstock tune mypackage.data:make_dataset --batch-size 64" in text
    assert "Exit code" in text
    assert max(map(len, text.splitlines())) <= 80
