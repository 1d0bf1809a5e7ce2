"""`penstock report`: what it writes, where, and how it ends."""

import json

import pytest

from penstock.recording.format import LoaderSetting


@pytest.fixture
def run(record):
    return record(wait_s=0.03, workers=0)


def test_a_page_lies_beside_the_recording_unless_told_otherwise(here, run, tmp_path):
    ran = here("report", run)
    assert (ran.code, ran.out, ran.err) == (0, f"{run.with_suffix('.html')} written\n", "")
    page = (tmp_path / "run.html").read_text("utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "no_overlap" in page


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.html", "<!doctype html>"), ("a.md", "# where the time went"), ("a.json", '{"traceevents":')],
)
def test_the_suffix_says_the_format(here, run, tmp_path, name, begins):
    assert here("report", run, "-o", name).code == 0
    assert (tmp_path / name).read_text("utf-8").lstrip().lower().startswith(begins)


def test_a_given_format_is_taken_whatever_the_suffix(here, run, tmp_path):
    assert here("report", run, "-o", "a.txt", "--format", "md").code == 0
    assert (tmp_path / "a.txt").read_text("utf-8").startswith("# ")


@pytest.mark.parametrize(("form", "name"), [("md", "run.md"), ("trace", "run.trace.json")])
def test_every_format_has_a_name_of_its_own(here, run, tmp_path, form, name):
    assert here("report", run, "--format", form).code == 0
    assert (tmp_path / name).exists()


def test_a_trace_holds_its_window_only(here, run, tmp_path):
    assert here("report", run, "-o", "a.json", "--from", 1.0, "--seconds", 0.5).code == 0
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    steps = [event for event in events if event.get("cat") == "step"]
    assert 9 <= len(steps) <= 12  # of 50 ms each
    assert all(0.9e6 < event["ts"] < 1.5e6 for event in steps)


@pytest.mark.parametrize("output", ["a.pdf", "run.jsonl", "nameless"])
def test_a_suffix_of_no_format_is_wrong_usage(here, run, tmp_path, output):
    before = run.read_bytes()
    ran = here("report", run, "-o", output)
    assert ran.code == 2
    assert ".html" in ran.err
    assert run.read_bytes() == before


def test_the_recording_is_never_written_over(here, run):
    before = run.read_bytes()
    ran = here("report", run, "-o", run, "--format", "md")
    assert (ran.code, run.read_bytes() == before) == (2, True)
    assert "is the recording itself" in ran.err


def test_a_folder_that_is_not_there_ends_with_3(here, run):
    ran = here("report", run, "-o", "nowhere/a.html")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("penstock: ")


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff" * 99, b'{"kind":"run","version":99}\n', b"just a log\n"])
def test_what_is_no_recording_ends_with_3_and_writes_nothing(here, tmp_path, content):
    if content is not None:
        (tmp_path / "bad.jsonl").write_bytes(content)
    ran = here("report", "bad.jsonl", "-o", "a.html")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize("form", ["html", "md", "trace"])
@pytest.mark.parametrize("count", [0, 1])
def test_next_to_nothing_can_be_drawn_too(here, record, form, count):
    assert here("report", record(count=count), "--format", form).code == 0


def test_names_from_the_run_cannot_become_markup(here, record, tmp_path):
    name = "<script>alert(1)</script>\x1b[31m"
    run = record(dataset=name, settings={name: LoaderSetting(requested=name, in_force=2)})
    for output in ("a.html", "a.md"):
        assert here("report", run, "-o", output).code == 0
        text = (tmp_path / output).read_text("utf-8")
        assert "<script>alert" not in text
        assert "\x1b" not in text


def test_a_hostile_file_name_is_spelled_out(here, run):
    ran = here("report", run, "-o", "a\x1b[31m.md")
    assert ran.code == 0
    assert ran.out == "a\\x1b[31m.md written\n"
