"""`penstock plan`: what it prints, what it writes, how it ends."""

import json
import re

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.plan import plan
from penstock.core.plan import Change, Plan
from penstock.errors import SettingError
from penstock.plan.document import load_plan
from penstock.recording.lines import Setting

APP = typer.Typer(rich_markup_mode=None)
APP.command()(plan)


@pytest.fixture
def planned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(APP, [str(argument) for argument in arguments])

    return run


@pytest.fixture
def slow(record):
    """A loop that makes its batches itself."""
    return record(wait_s=0.03, step_s=0.02, workers=0, dataset="Pictures", dataset_size=1000)


def test_changes_end_with_1_and_come_with_reason_and_gain(planned, slow):
    ran = planned(slow)
    assert ran.exit_code == 1, ran.output
    assert re.match(r"\d+ changes?: ", ran.stdout)
    assert "num_workers" in ran.stdout
    assert "samples/s" in ran.stdout
    assert ran.stderr == ""


def test_a_healthy_run_has_nothing_to_change(planned, record):
    ran = planned(record())
    assert ran.exit_code == 0, ran.output
    assert "Nothing to change" in ran.stdout


def test_a_cause_with_a_remedy_whose_gain_nobody_knows_is_a_change_all_the_same(planned, record, monkeypatch):
    """And without a cause it is only something to try."""
    trial = Change(scope="step", name="precision", now=None, then="bfloat16", reason="try it")
    found = Plan(source="recording", fingerprint={}, changes=(trial,))
    monkeypatch.setattr("penstock.cli.plan.plan_from_recording", lambda recording, profile: found)
    assert planned(record()).exit_code == 0
    assert planned(record("slow.jsonl", wait_s=0.03, workers=0)).exit_code == 1
    assert planned(record("few.jsonl", count=3)).exit_code == 3


def test_a_run_nobody_can_judge_is_undetermined(planned, record):
    assert planned(record(wait_s=0.03, fetched=False)).exit_code == 3
    assert planned(record("few.jsonl", count=3)).exit_code == 3
    assert planned(record("none.jsonl", count=0)).exit_code == 3


def test_the_file_is_the_plan_and_stdout_tells_of_it_beside(planned, slow, tmp_path):
    ran = planned(slow, "-o", "plan.yaml")
    assert ran.exit_code == 1
    assert "plan.yaml written" in ran.stderr
    found = load_plan(tmp_path / "plan.yaml")
    assert found.source == "recording"
    assert found.dataloader["num_workers"] > 0
    assert found.fingerprint["dataset"] == {"name": "Pictures", "size": 1000}
    assert any(change.name == "num_workers" and change.gain > 0 for change in found.changes)


def test_json_is_the_same_document_and_alone_on_stdout(planned, slow, tmp_path):
    ran = planned(slow, "--json", "-o", "plan.yaml")
    document = json.loads(ran.stdout)
    assert document["penstock_plan"] == 1
    assert document["changes"][0]["reason"]
    assert document["dataloader"] == load_plan(tmp_path / "plan.yaml").dataloader


def test_markdown_is_a_document(planned, slow):
    ran = planned(slow, "--format", "md")
    assert ran.exit_code == 1
    assert ran.stdout.startswith("# What to change\n")


@pytest.mark.parametrize("profile", ["balanced", "speed", "memory"])
def test_the_profile_is_used(planned, slow, profile):
    assert json.loads(planned(slow, "--json", "--profile", profile).stdout)["profile"] == profile


def test_another_profile_is_wrong_usage(planned, slow):
    ran = planned(slow, "--profile", "fastest")
    assert ran.exit_code == 2
    assert "fastest" in ran.stderr


@pytest.mark.parametrize("content", [None, b"", b"hello\nworld\n", b'{"kind":"run","version":99}\n', bytes(range(256))])
def test_what_cannot_be_read_is_one_line_and_exit_code_2(planned, tmp_path, content):
    if content is not None:
        (tmp_path / "run.jsonl").write_bytes(content)
    ran = planned("run.jsonl", "-o", "plan.yaml")
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.startswith("penstock: ")
    assert "run.jsonl" in ran.stderr
    assert not (tmp_path / "plan.yaml").exists()


def test_the_recording_itself_is_never_overwritten(planned, slow):
    before = slow.read_bytes()
    ran = planned(slow, "-o", slow)
    assert isinstance(ran.exception, SettingError)
    assert slow.read_bytes() == before


def test_names_from_the_run_cannot_reach_the_terminal_raw(planned, record, tmp_path):
    hostile = "\x1b[31mred\r\n"
    settings = {hostile: Setting(requested=hostile, in_force=1)}
    run = record(wait_s=0.03, workers=0, dataset=hostile, name=hostile, settings=settings)
    for options in ((), ("--format", "md"), ("-o", "plan.yaml")):
        ran = planned(run, *options)
        assert ran.exit_code == 1
        assert "\x1b" not in ran.output
        assert "\r" not in ran.output
    assert "\x1b" not in (tmp_path / "plan.yaml").read_text(encoding="utf-8")
    assert load_plan(tmp_path / "plan.yaml").fingerprint["dataset"]["name"] == hostile


def test_a_truncated_recording_is_planned_for_and_said_to_be(planned, slow):
    slow.write_bytes(slow.read_bytes()[:-30])
    ran = planned(slow)
    assert ran.exit_code == 1
    assert "cut short at the end" in " ".join(ran.stdout.split())


def test_help_teaches_the_whole_loop(planned):
    text = planned("--help").stdout
    for words in ("penstock run", "penstock plan run.jsonl -o plan.yaml", "penstock verify", "Exit code"):
        assert words in text
