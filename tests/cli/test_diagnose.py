"""`penstock diagnose`: its output and its exit codes."""

import json

import pytest
from tests.support.paths import DATA_FILES

from penstock.cli import console
from penstock.recording.format import LoaderSetting

LOGS = DATA_FILES
HOSTILE = "\x1b[31mred\x1b[0m<script>alert(1)</script>\r\n"


@pytest.fixture
def slow(record):
    """The recording of a loop without workers that waits for its batches."""
    return record(wait_s=0.03, step_s=0.02, workers=0)


def test_a_healthy_run_ends_with_0(in_process, record):
    ran = in_process("diagnose", record())
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("healthy: ")


def test_findings_end_with_1_and_come_with_gain_evidence_and_advice(in_process, slow):
    ran = in_process("diagnose", slow)
    assert ran.code == 1
    assert ran.out.startswith("findings: ")
    assert "1. no_overlap" in ran.out
    assert "num_workers" in ran.out
    assert "samples/s" in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())


def test_undetermined_ends_with_4_and_names_the_experiment(in_process, record):
    ran = in_process("diagnose", record(wait_s=0.03, fetched=False))
    assert ran.code == 4
    assert "To decide" in ran.out


def test_the_installed_program_prints_the_same(in_process, penstock, slow):
    ran = penstock("diagnose", slow)
    assert (ran.code, ran.out) == (1, in_process("diagnose", slow).out)


def test_json_has_the_verdict_and_the_findings_worst_first(in_process, slow):
    ran = in_process("diagnose", slow, "--json")
    assert ran.code == 1
    found = ran.json
    assert found["verdict"] == "findings"
    assert found["sentence"]
    first = found["findings"][0]
    assert first["rule"] == "no_overlap"
    assert {"rule", "gain", "confidence", "evidence", "advice"} <= set(first)
    weights = [finding["gain"] * finding["confidence"] ** 2 for finding in found["findings"]]
    assert weights == sorted(weights, reverse=True)
    assert all(isinstance(fact, str) for fact in first["evidence"])
    assert found["impact"]["share"] == pytest.approx(0.6, abs=0.05)


@pytest.mark.parametrize(("options", "code", "verdict"), [({}, 0, "healthy"), ({"count": 3}, 4, "undetermined")])
def test_json_is_complete_without_findings(in_process, record, options, code, verdict):
    ran = in_process("diagnose", record(**options), "--json")
    assert (ran.code, ran.json["verdict"], ran.json["findings"]) == (code, verdict, [])


def test_markdown_has_the_sections_of_a_report(in_process, slow):
    ran = in_process("diagnose", slow, "--format", "md")
    assert ran.code == 1
    titles = [line for line in ran.out.splitlines() if line.startswith("## ")]
    assert [title.split(". ")[1] for title in titles] == [
        "Summary", "Evidence", "Analysis", "Impact", "Plan", "Conclusion",
    ]  # fmt: skip


def test_settings_that_were_changed_are_listed(in_process, record):
    ran = in_process("diagnose", record(settings={"prefetch_factor": LoaderSetting(requested=16, in_force=2)}))
    assert "prefetch_factor requested 16, in force 2" in ran.out


# -- logs ----------------------------------------------------------------------------------------------------------


def test_a_training_log_can_be_diagnosed(in_process):
    ran = in_process("diagnose", LOGS / "slow_batches.log", "--json")
    assert ran.code in (1, 4)
    assert ran.json["verdict"] in ("findings", "undetermined")
    assert any("lines were recognised" in note for note in ran.json["notes"])


def test_the_log_of_a_healthy_run_is_healthy(in_process):
    ran = in_process("diagnose", LOGS / "timm_healthy.log")
    assert ran.code == 0, ran.out


def test_a_log_of_an_unknown_format_needs_a_pattern(in_process, tmp_path):
    log = tmp_path / "own.log"
    log.write_text("".join(f"it={step} dt=0.30 load=0.20\n" for step in range(60)))
    assert in_process("diagnose", log).code == 2
    ran = in_process("diagnose", log, "--pattern", r"it=(?P<step>\d+) dt=(?P<time>\S+) load=(?P<data>\S+)", "--json")
    assert ran.code in (1, 4)
    assert ran.json["impact"]["share"] == pytest.approx(2 / 3, abs=0.1)


@pytest.mark.parametrize("pattern", ["(", "(?P<nothing>x)"])
def test_an_invalid_pattern_exits_with_2(in_process, tmp_path, pattern):
    (tmp_path / "own.log").write_text("it=1\n")
    ran = in_process("diagnose", "own.log", "--pattern", pattern)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("penstock: ")


def test_a_log_has_too_little_for_a_markdown_report(in_process):
    ran = in_process("diagnose", LOGS / "timm_healthy.log", "--format", "md")
    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize("flag", [("--num-workers", 4), ("--batch-size", 8)])
def test_settings_of_a_recording_cannot_be_given_as_options(in_process, record, flag):
    ran = in_process("diagnose", record(), *flag)
    assert (ran.code, ran.out) == (2, "")
    assert "a recording contains its own settings" in ran.err


# -- bad input -----------------------------------------------------------------------------------------------------

UNREADABLE = {
    "missing": None,
    "empty": b"",
    "binary": bytes(range(256)) * 64,
    "newer": b'{"kind":"run","version":99}\n',
    "nonsense": b"hello\nworld\n",
    "another kind of json": b'{"kind":"cat"}\n' * 3,
    "cut in its first line": b'{"kind":"run","vers',
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_file_is_one_line_and_exit_code_2(in_process, tmp_path, name):
    if UNREADABLE[name] is not None:
        (tmp_path / "run.jsonl").write_bytes(UNREADABLE[name])
    ran = in_process("diagnose", "run.jsonl")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("penstock: ")
    assert ran.err.count("\n") == 1
    assert "run.jsonl" in ran.err


def test_a_newer_recording_asks_for_an_update(in_process, tmp_path):
    (tmp_path / "run.jsonl").write_bytes(UNREADABLE["newer"])
    assert "newer penstock" in in_process("diagnose", "run.jsonl").err


def test_a_folder_exits_with_2(in_process, tmp_path):
    assert in_process("diagnose", tmp_path).code == 2


def test_a_truncated_recording_is_diagnosed_with_a_note(in_process, slow):
    slow.write_bytes(slow.read_bytes()[:-30])
    ran = in_process("diagnose", slow)
    assert ran.code == 1
    assert "cut short at the end" in ran.out


def test_a_recording_without_steps_is_undetermined(in_process, record):
    ran = in_process("diagnose", record(count=0))
    assert ran.code == 4
    assert "Nothing was iterated over" in ran.out


@pytest.mark.parametrize("form", [(), ("--format", "md")])
def test_control_characters_in_names_are_escaped(in_process, record, form):
    settings = {HOSTILE: LoaderSetting(requested=HOSTILE, in_force=1)}
    ran = in_process("diagnose", record(dataset=HOSTILE, settings=settings), *form)
    assert "\x1b" not in ran.out
    assert "\r" not in ran.out
    assert "x1b" in ran.out


def test_json_escapes_control_characters_and_parses_to_the_same_document(capsys):
    document = {"µ": "\x9b2J\u202e\x7f\U000e0001 é"}
    console.print_json(document)
    out = capsys.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in out)
    assert "µ" in out
    assert json.loads(out) == document


def test_control_characters_in_a_file_name_are_escaped(in_process):
    ran = in_process("diagnose", "\x1b[2Jgone.jsonl")
    assert ran.code == 2
    assert "\x1b" not in ran.err
    assert "\\x1b[2Jgone.jsonl" in ran.err
