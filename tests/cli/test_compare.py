"""`penstock compare`: its answers, its output and its exit codes."""

import pytest


@pytest.fixture
def pair(record):
    return record("slow.jsonl", wait_s=0.03), record("fast.jsonl", wait_s=0.001)


def test_a_faster_run_is_better(in_process, pair):
    ran = in_process("compare", *pair)
    assert (ran.code, ran.err) == (0, "")
    assert "Better: " in ran.out
    assert "rate" in ran.out


def test_a_slower_run_is_worse(in_process, pair):
    assert "Worse: " in in_process("compare", *reversed(pair)).out


def test_a_run_compared_with_itself_is_inconclusive(in_process, pair):
    ran = in_process("compare", pair[0], pair[0])
    assert ran.code == 0
    assert "Inconclusive" in ran.out


def test_json_has_the_answer_and_every_measure_with_its_interval(in_process, pair):
    ran = in_process("compare", *pair, "--json")
    assert ran.code == 0
    assert ran.json["answer"] == "better"
    rate = ran.json["measures"][0]
    assert rate["name"] == "rate"
    assert rate["low"] <= rate["b"] / rate["a"] <= rate["high"]
    assert rate["b"] / rate["a"] == pytest.approx(0.05 / 0.021, rel=0.01)


def test_runs_that_are_too_short_are_inconclusive_and_not_refused(in_process, record):
    ran = in_process("compare", record("a.jsonl", count=4), record("b.jsonl", count=4))
    assert ran.code == 0
    assert "Inconclusive" in ran.out
    assert "too short" in ran.out


@pytest.mark.parametrize(
    "content", [None, b"", b"\x00\xff" * 99, b'{"kind":"run","version":99}\n', b'{"kind":"run"}\n']
)
@pytest.mark.parametrize("position", [0, 1])
def test_an_unreadable_recording_exits_with_2(in_process, pair, tmp_path, content, position):
    paths = list(pair)
    paths[position] = tmp_path / "bad.jsonl"
    if content is not None:
        paths[position].write_bytes(content)
    ran = in_process("compare", *paths)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("penstock: ")
    assert ran.err.count("\n") == 1


def test_control_characters_in_names_are_escaped(in_process, record):
    name = "\x1b[31mred\x1b[0m [bold]loud[/bold]"
    ran = in_process("compare", record("a.jsonl", name=name), record("b.jsonl", name="val"))
    assert ran.code == 0
    assert "Different loaders: \\x1b[31mred" in ran.out
    assert "[bold]loud" in ran.out
    assert "\x1b" not in ran.out


# -- the gate of CI ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "code", "word"),
    [({"wait_s": 0.001}, 0, "Passed: "), ({"wait_s": 0.05}, 1, "Failed: slower"), ({"count": 4}, 4, "Inconclusive: ")],
)
def test_the_gate_has_an_exit_code_for_each_answer(in_process, record, after, code, word):
    before, after = record("before.jsonl", wait_s=0.001), record("after.jsonl", **after)
    ran = in_process("compare", before, after, "--fail-if-slower", "5%")
    assert ran.code == code
    assert word in ran.out


def test_folders_are_several_runs_of_each(in_process, record, tmp_path):
    for folder, wait_s in (("main", 0.001), ("branch", 0.004)):
        (tmp_path / folder).mkdir()
        for number in range(3):
            record(f"{folder}/{number}.jsonl", wait_s=wait_s + number * 1e-5)
        record(f"{folder}/0.rank1.jsonl", wait_s=9.0)
    ran = in_process("compare", "main", "branch", "--fail-if-slower", "0.05", "--json")
    assert (ran.code, ran.json["gate"]) == (1, "slower")
    assert ran.json["names"] == ["main", "branch"]
    assert [len(side) for side in ran.json["files"]] == [3, 3]
    assert not any("One run each" in note for note in ran.json["notes"])


def test_files_of_the_same_name_are_distinguished_by_their_folders(in_process, record, tmp_path):
    for folder in ("main", "branch"):
        (tmp_path / folder).mkdir()
    files = record("main/run.jsonl", wait_s=0.03), record("branch/run.jsonl", wait_s=0.001)
    assert "Better: branch/run.jsonl runs at" in " ".join(in_process("compare", *files).out.split())


@pytest.mark.parametrize("share", ["5", "0", "-5%", "100%", "much", "5%%"])
def test_what_is_no_share_is_refused(in_process, pair, share):
    ran = in_process("compare", *pair, f"--fail-if-slower={share}")
    assert ran.code == 2
    assert "Write 5% or 0.05" in ran.err


def test_an_empty_folder_is_refused(in_process, pair, tmp_path):
    (tmp_path / "empty").mkdir()
    ran = in_process("compare", pair[0], "empty")
    assert ran.code == 2
    assert "has no recordings" in ran.err
