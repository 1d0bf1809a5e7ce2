import json
import os

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.doctor import doctor
from penstock.errors import StorageError
from penstock.storage.curve import OpenStat, Point, StorageCurve
from penstock.storage.kind import identify

app = typer.Typer()
app.command()(doctor)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


def make_curve(*points):
    return StorageCurve(
        points=tuple(Point(*point) for point in points),
        sample_bytes=524_288,
        open_stat=OpenStat(4.0, 9.0, 100),
        cold=True,
        method="direct",
        probe_bytes=1 << 28,
        seconds=5.0,
        measured_unix_s=0.0,
    )


@pytest.fixture
def probed(monkeypatch):
    """Answer for the probe, and keep what it was asked."""
    asked = []

    def install(answer):
        def probe(path, **settings):
            asked.append(settings)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr("penstock.cli.doctor.probe", probe)
        return asked

    return install


@pytest.fixture(autouse=True)
def _plenty_of_room(monkeypatch):
    from penstock.report.storage import Room

    monkeypatch.setattr("penstock.cli.doctor._room", lambda path: Room(True, 80 * 10**9, 250 * 10**9))


def test_a_real_path_is_measured_and_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "0.tar").write_bytes(os.urandom(65 << 20))
    first = run(tmp_path / "shards", "--json")
    document = json.loads(first.stdout)
    assert document["storage"]["kind"] == identify(tmp_path).kind
    assert document["curve"]["probe_bytes"] == 65 << 20
    assert document["in_flight"] in (1, 2, 4, 8, 16, 32)
    assert first.exit_code == (0 if document["ok"] else 1)
    again = json.loads(run(tmp_path / "shards", "--json").stdout)
    assert again["curve"] == document["curve"]  # kept, not measured again


def test_a_good_storage_exits_0_within_80_columns(tmp_path, probed):
    probed(make_curve((1, 1500, 2000), (4, 3000, 5500)))
    result = run(tmp_path)
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "\x1b" not in result.stdout
    for words in ("kind", "mount", "writable", "sequential", "in flight to use", "open + stat", "measured curve"):
        assert words in result.stdout
    assert "3,000" in result.stdout


def test_a_seeking_storage_is_marked_and_exits_1(tmp_path, probed):
    probed(make_curve((1, 180, 90), (2, 170, 95)))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert any(line.split()[:2] == ["!", "random"] for line in result.stdout.splitlines())


def test_a_storage_that_cannot_be_measured_is_still_described(tmp_path, probed):
    probed(StorageError("nothing to measure with", advice="Point at shards"))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "nothing to measure with" in " ".join(result.stdout.split())
    document = json.loads(run(tmp_path, "--json").stdout)
    assert (document["curve"], document["in_flight"], document["ok"]) == (None, None, False)


def test_settings_reach_the_probe(tmp_path, probed):
    asked = probed(make_curve((1, 1500, 2000)))
    run(tmp_path, "--sample-size", "2500000", "--refresh")
    assert asked == [{"sample_bytes": 2_500_000, "refresh": True}]


def test_names_are_shown_not_obeyed(tmp_path, probed):
    probed(make_curve((1, 1500, 2000)))
    folder = tmp_path / "[bold]x\x1b[31m"
    folder.mkdir()
    result = run(folder)
    assert "[bold]x\\x1b[31m" in result.stdout.replace("\n", "")
    assert "\x1b" not in result.stdout


def test_a_name_that_is_not_text_can_be_shown(tmp_path, probed):
    probed(make_curve((1, 1500, 2000)))
    folder = os.fsencode(tmp_path) + b"/\xff"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this filesystem takes only names that are text")
    assert run(os.fsdecode(folder)).exit_code == 0
    assert json.loads(run(os.fsdecode(folder), "--json").stdout)["ok"] is True


def test_a_path_that_does_not_exist_is_wrong_usage(tmp_path):
    result = run(tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "does not exist" in " ".join(result.output.replace("│", "").split())


@pytest.mark.parametrize("size", ["0", "-5", "33554433", "much"])
def test_a_size_that_cannot_be_measured_is_wrong_usage(tmp_path, size):
    assert run(tmp_path, f"--sample-size={size}").exit_code == 2


def test_the_help_teaches_with_an_example():
    text = run("--help").stdout
    assert "penstock doctor shards/ --sample-size 2500000" in text
    assert "Exit code" in text
