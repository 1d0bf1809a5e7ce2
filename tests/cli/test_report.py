"""`penstock report`: its files, formats and exit codes."""

import json

import pytest

from penstock.recording.format import LoaderSetting


@pytest.fixture
def run(record):
    return record(wait_s=0.03, workers=0)


def test_the_page_is_written_beside_the_recording_by_default(in_process, run, tmp_path):
    ran = in_process("report", run)
    assert (ran.code, ran.out, ran.err) == (0, f"{run.with_suffix('.html')} written\n", "")
    page = (tmp_path / "run.html").read_text("utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "no_overlap" in page


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.html", "<!doctype html>"), ("a.md", "# where the time went"), ("a.json", '{"traceevents":')],
)
def test_the_suffix_selects_the_format(in_process, run, tmp_path, name, begins):
    assert in_process("report", run, "-o", name).code == 0
    assert (tmp_path / name).read_text("utf-8").lstrip().lower().startswith(begins)


def test_the_format_option_overrides_the_suffix(in_process, run, tmp_path):
    assert in_process("report", run, "-o", "a.txt", "--format", "md").code == 0
    assert (tmp_path / "a.txt").read_text("utf-8").startswith("# ")


@pytest.mark.parametrize(("form", "name"), [("md", "run.md"), ("trace", "run.trace.json")])
def test_every_format_has_its_default_name(in_process, run, tmp_path, form, name):
    assert in_process("report", run, "--format", form).code == 0
    assert (tmp_path / name).exists()


def test_a_trace_contains_only_its_window(in_process, run, tmp_path):
    assert in_process("report", run, "-o", "a.json", "--from", 1.0, "--duration", 0.5).code == 0
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    steps = [event for event in events if event.get("cat") == "step"]
    assert 9 <= len(steps) <= 12  # of 50 ms each
    assert all(0.9e6 < event["ts"] < 1.5e6 for event in steps)


@pytest.mark.parametrize("output", ["a.pdf", "run.jsonl", "nameless"])
def test_an_unknown_suffix_exits_with_2(in_process, run, tmp_path, output):
    before = run.read_bytes()
    ran = in_process("report", run, "-o", output)
    assert ran.code == 2
    assert ".html" in ran.err
    assert run.read_bytes() == before


def test_the_recording_is_never_overwritten(in_process, run):
    before = run.read_bytes()
    ran = in_process("report", run, "-o", run, "--format", "md")
    assert (ran.code, run.read_bytes() == before) == (2, True)
    assert "is the recording itself" in ran.err


def test_a_missing_folder_exits_with_2(in_process, run):
    ran = in_process("report", run, "-o", "nowhere/a.html")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("penstock: ")


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff" * 99, b'{"kind":"run","version":99}\n', b"just a log\n"])
def test_a_file_that_is_no_recording_exits_with_2_and_writes_nothing(in_process, tmp_path, content):
    if content is not None:
        (tmp_path / "bad.jsonl").write_bytes(content)
    ran = in_process("report", "bad.jsonl", "-o", "a.html")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize("form", ["html", "md", "trace"])
@pytest.mark.parametrize("count", [0, 1])
def test_recordings_with_at_most_one_step_can_be_drawn(in_process, record, form, count):
    assert in_process("report", record(count=count), "--format", form).code == 0


def test_names_cannot_become_markup(in_process, record, tmp_path):
    name = "<script>alert(1)</script>\x1b[31m"
    run = record(dataset=name, settings={name: LoaderSetting(requested=name, in_force=2)})
    for output in ("a.html", "a.md"):
        assert in_process("report", run, "-o", output).code == 0
        text = (tmp_path / output).read_text("utf-8")
        assert "<script>alert" not in text
        assert "\x1b" not in text


def test_control_characters_in_a_file_name_are_escaped(in_process, run):
    ran = in_process("report", run, "-o", "a\x1b[31m.md")
    assert ran.code == 0
    assert ran.out == "a\\x1b[31m.md written\n"
