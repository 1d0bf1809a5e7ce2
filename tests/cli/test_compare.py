"""`penstock compare`: is the second faster, and may that be said."""

import pytest


@pytest.fixture
def pair(record):
    return record("slow.jsonl", wait_s=0.03), record("quick.jsonl", wait_s=0.001)


def test_a_faster_run_is_better(here, pair):
    ran = here("compare", *pair)
    assert (ran.code, ran.err) == (0, "")
    assert "Better: " in ran.out
    assert "rate" in ran.out


def test_the_other_way_round_it_is_worse(here, pair):
    assert "Worse: " in here("compare", *reversed(pair)).out


def test_a_run_compared_with_itself_is_inconclusive(here, pair):
    ran = here("compare", pair[0], pair[0])
    assert ran.code == 0
    assert "Inconclusive" in ran.out


def test_json_has_the_answer_and_every_measure_with_its_interval(here, pair):
    ran = here("compare", *pair, "--json")
    assert ran.code == 0
    assert ran.json["answer"] == "better"
    rate = ran.json["measures"][0]
    assert rate["name"] == "rate"
    assert rate["low"] <= rate["b"] / rate["a"] <= rate["high"]
    assert rate["b"] / rate["a"] == pytest.approx(0.05 / 0.021, rel=0.01)


def test_too_short_runs_are_inconclusive_not_refused(here, record):
    ran = here("compare", record("a.jsonl", count=4), record("b.jsonl", count=4))
    assert ran.code == 0
    assert "Inconclusive" in ran.out
    assert "too short" in ran.out


@pytest.mark.parametrize(
    "content", [None, b"", b"\x00\xff" * 99, b'{"kind":"run","version":99}\n', b'{"kind":"run"}\n']
)
@pytest.mark.parametrize("place", [0, 1])
def test_what_cannot_be_compared_ends_with_3(here, pair, tmp_path, content, place):
    paths = list(pair)
    paths[place] = tmp_path / "bad.jsonl"
    if content is not None:
        paths[place].write_bytes(content)
    ran = here("compare", *paths)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("penstock: ")
    assert ran.err.count("\n") == 1


def test_names_from_the_runs_cannot_reach_the_terminal_raw(here, record):
    name = "\x1b[31mred\x1b[0m [bold]loud[/bold]"
    ran = here("compare", record("a.jsonl", name=name), record("b.jsonl", name="val"))
    assert ran.code == 0
    assert "Different loaders: \\x1b[31mred" in ran.out
    assert "[bold]loud" in ran.out
    assert "\x1b" not in ran.out
