"""`penstock plan`: its output, its file and its exit codes."""

import json
import re
import sys

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.plan import plan
from penstock.core.plan import Change, Plan
from penstock.errors import SettingError
from penstock.plan.document import load_plan
from penstock.plan.fingerprint import fingerprint
from penstock.probe.results import DecodePoint, DecodeRates, IpcCost, Probes, SkippedProbe, probes_document
from penstock.recording.format import EventLine, LoaderSetting, RunLine
from penstock.recording.writer import Recorder
from penstock.watcher.machine.facts import machine_facts

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
    """The recording of a loop without workers that waits for its batches."""
    return record(wait_s=0.03, step_s=0.02, workers=0, dataset="Images", dataset_size=1000)


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


def test_changes_without_a_known_gain_count_only_if_the_run_waits(planned, record, monkeypatch):
    trial = Change(scope="step", name="precision", now=None, then="bfloat16", reason="try it")

    def code(wait_share):
        found = Plan(source="recording", fingerprint={}, changes=(trial,), wait_share=wait_share)
        monkeypatch.setattr("penstock.cli.plan.plan_from_diagnosis", lambda run, profile: found)
        return planned(record()).exit_code

    assert (code(0.0), code(0.05), code(0.5), code(None)) == (0, 0, 1, 4)


def test_the_share_of_waiting_is_in_the_document(planned, slow, record):
    assert json.loads(planned(slow, "--json").stdout)["prediction"]["wait_share"] == pytest.approx(0.6, abs=0.01)
    assert "wait_share" not in json.loads(planned(record("few.jsonl", count=3), "--json").stdout)["prediction"]


# -- from probes -----------------------------------------------------------------------------------------------------

PROBES = Probes(
    decode=DecodeRates(
        points=(DecodePoint(1, 100.0, 0.01), DecodePoint(2, 199.0, 0.01)),
        sample_bytes=100_000.0,
        decoded_bytes=150_000,
        samples=16,
        bad=0,
        source="a.tar",
        seconds=6.0,
    ),
    ipc=IpcCost(
        batch_size=8, batch_bytes=1_200_000, arrays=1, batches=100, batch_s=0.002, main_cpu_s=0.001, seconds=1.0
    ),
    storage=SkippedProbe("no PATH was given"),
)


@pytest.fixture
def probes(tmp_path):
    document = probes_document(PROBES, fingerprint(machine_facts()))
    (tmp_path / "probes.json").write_bytes(msgspec.json.encode(document))
    return "probes.json"


@pytest.fixture
def probed(tmp_path):
    """Return a function that writes the recording of a step probe."""

    def write(samples=8, stages=("alone", "beside"), probe="compute"):
        recorder = Recorder(tmp_path / "probe.jsonl", RunLine(probe=probe))
        for stage in stages:
            detail = {"stage": stage, "steps": 10, "burners": 2, "samples": samples, "device": "cuda"}
            recorder.put(EventLine(what="probe", at_s=1.0, seconds=5.0, detail=detail))
        recorder.close()
        return "probe.jsonl"

    return write


def test_a_plan_can_be_made_from_probes(planned, probes, tmp_path):
    ran = planned("--probes", probes, "-o", "plan.yaml")
    assert ran.exit_code == 1, ran.output
    assert "Made from probes" in ran.stdout
    found = load_plan(tmp_path / "plan.yaml")
    assert (found.source, found.fingerprint) == ("probes", fingerprint(machine_facts()))
    assert found.dataloader["num_workers"] > 0


def test_a_given_and_a_probed_step_give_the_same_limits(planned, probes, probed):
    given = json.loads(planned("--probes", probes, "--step-ms", 500, "--json").stdout)
    measured = json.loads(planned("--probes", probes, probed(), "--json").stdout)
    assert given["prediction"]["limits"] == measured["prediction"]["limits"]
    assert given["prediction"]["planned_samples_s"] == pytest.approx(8 / 0.5, rel=0.02)


@pytest.mark.parametrize(
    ("recording", "words"),
    [
        ({"samples": 24}, "the step was timed with batches of 24, the IPC probe used batches of 8"),
        ({"stages": ("alone",)}, "the probe was not complete"),
        ({"probe": ""}, "is the recording of a run"),
    ],
)
def test_an_unusable_step_probe_is_refused(planned, probes, probed, recording, words):
    assert words in str(planned("--probes", probes, probed(**recording)).exception)


def test_the_recording_of_a_probe_alone_is_refused(planned, probed):
    assert "the recording of a probe (compute), not of a run" in str(planned(probed()).exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to plan from"),
        (("run.jsonl", "--dataset", "a:b"), "planned for by itself"),
        (("run.jsonl", "--batch-size", "8"), "--batch-size is for --dataset"),
        (("run.jsonl", "--step-ms", "8"), "Keep one of them"),
        (("--probes", "probes.json", "-o", "probes.json"), "is the input of the plan"),
        (("--probes", "none.json"), "none.json: cannot be read"),
        (("--dataset", "no_such_module:make"), "cannot be imported"),
    ],
)
def test_wrong_usage_is_reported(planned, probes, arguments, words):
    ran = planned(*arguments)
    assert isinstance(ran.exception, SettingError)
    assert words in str(ran.exception)


def test_a_plan_can_be_made_for_a_dataset(planned, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (tmp_path / "penstock_planned_data.py").write_text(
        "import time\n"
        "class Slow:\n"
        "    def __len__(self): return 10_000\n"
        "    def __getitem__(self, index): time.sleep(0.002); return index\n"
        "def make(): return Slow()\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    ran = planned("--dataset", "penstock_planned_data:make", "--batch-size", 8, "--step-ms", 4, "--json")
    sys.modules.pop("penstock_planned_data", None)
    assert ran.exit_code == 1, ran.output
    document = json.loads(ran.stdout)
    assert document["source"] == "dataset"
    assert document["fingerprint"]["dataset"]["size"] == 10_000
    assert document["dataloader"]["num_workers"] >= 3


def test_a_run_with_too_little_evidence_is_undetermined(planned, record):
    assert planned(record(wait_s=0.03, fetched=False)).exit_code == 4
    assert planned(record("few.jsonl", count=3)).exit_code == 4
    assert planned(record("none.jsonl", count=0)).exit_code == 4


def test_the_plan_is_written_to_the_file_and_printed(planned, slow, tmp_path):
    ran = planned(slow, "-o", "plan.yaml")
    assert ran.exit_code == 1
    assert "plan.yaml written" in ran.stderr
    found = load_plan(tmp_path / "plan.yaml")
    assert found.source == "recording"
    assert found.dataloader["num_workers"] > 0
    assert found.fingerprint["dataset"] == {"name": "Images", "size": 1000}
    assert any(change.name == "num_workers" and change.gain > 0 for change in found.changes)


def test_json_is_alone_on_stdout(planned, slow, tmp_path):
    ran = planned(slow, "--json", "-o", "plan.yaml")
    document = json.loads(ran.stdout)
    assert document["penstock_plan"] == 1
    assert document["changes"][0]["reason"]
    assert document["dataloader"] == load_plan(tmp_path / "plan.yaml").dataloader


def test_markdown_is_printed(planned, slow):
    ran = planned(slow, "--format", "md")
    assert ran.exit_code == 1
    assert ran.stdout.startswith("# What to change\n")


@pytest.mark.parametrize("profile", ["balanced", "speed", "memory"])
def test_the_profile_is_used(planned, slow, profile):
    assert json.loads(planned(slow, "--json", "--profile", profile).stdout)["profile"] == profile


def test_an_unknown_profile_exits_with_2(planned, slow):
    ran = planned(slow, "--profile", "fastest")
    assert ran.exit_code == 2
    assert "fastest" in ran.stderr


@pytest.mark.parametrize("content", [None, b"", b"hello\nworld\n", b'{"kind":"run","version":99}\n', bytes(range(256))])
def test_an_unreadable_file_is_one_line_and_exit_code_2(in_process, tmp_path, content):
    if content is not None:
        (tmp_path / "run.jsonl").write_bytes(content)
    ran = in_process("plan", "run.jsonl", "-o", "plan.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("penstock: ")
    assert "run.jsonl" in ran.err
    assert not (tmp_path / "plan.yaml").exists()


def test_the_recording_itself_is_never_overwritten(planned, slow):
    before = slow.read_bytes()
    ran = planned(slow, "-o", slow)
    assert isinstance(ran.exception, SettingError)
    assert slow.read_bytes() == before


def test_control_characters_in_names_are_escaped(planned, record, tmp_path):
    hostile = "\x1b[31mred\r\n"
    settings = {hostile: LoaderSetting(requested=hostile, in_force=1)}
    run = record(wait_s=0.03, workers=0, dataset=hostile, name=hostile, settings=settings)
    for options in ((), ("--format", "md"), ("-o", "plan.yaml")):
        ran = planned(run, *options)
        assert ran.exit_code == 1
        assert "\x1b" not in ran.output
        assert "\r" not in ran.output
    assert "\x1b" not in (tmp_path / "plan.yaml").read_text(encoding="utf-8")
    assert load_plan(tmp_path / "plan.yaml").fingerprint["dataset"]["name"] == hostile


def test_a_truncated_recording_is_planned_for_with_a_note(planned, slow):
    slow.write_bytes(slow.read_bytes()[:-30])
    ran = planned(slow)
    assert ran.exit_code == 1
    assert "cut short at the end" in " ".join(ran.stdout.split())


def test_the_help_has_examples(planned):
    text = planned("--help").stdout
    for words in ("penstock run", "penstock plan run.jsonl -o plan.yaml", "penstock verify", "Exit code"):
        assert words in text
