import json
import os
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.doctor import doctor
from penstock.errors import SettingError, StorageError
from penstock.plan.doctor.check import Check, CheckStatus, unknown_check
from penstock.plan.doctor.examine import DoctorReport
from penstock.plan.doctor.examine import examine as really_examine
from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.storage.mounts import identify_storage

app = typer.Typer()
app.command()(doctor)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


def make_curve(*points):
    return StorageCurve(
        points=tuple(CurvePoint(*point) for point in points),
        sample_bytes=524_288,
        open_stat=OpenStat(4.0, 9.0, 100),
        cold=True,
        method="direct",
        probe_bytes=1 << 28,
        seconds=5.0,
        measured_unix_s=0.0,
    )


@pytest.fixture
def fake_probe(monkeypatch):
    """Return a function that replaces the storage probe by a given answer or error, and records its settings."""
    calls = []

    def install(answer):
        def probe(path, **settings):
            calls.append(settings)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr("penstock.cli.doctor.probe_storage", probe)
        return calls

    return install


@pytest.fixture(autouse=True)
def _enough_space(monkeypatch):
    from penstock.report.doctor import WritableSpace

    monkeypatch.setattr(
        "penstock.cli.doctor._writable_space", lambda path: WritableSpace(True, 80 * 10**9, 250 * 10**9)
    )


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine without problems, unless the test gives other rows: the real one may have any."""
    rows = {"machine": (Check("cores", "16 of 16", "Plenty."), unknown_check("GPU", "No driver.")), "script": ()}
    monkeypatch.setattr("penstock.cli.doctor.examine", lambda script: DoctorReport(**rows))
    return rows


def test_a_real_path_is_measured_and_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "0.tar").write_bytes(os.urandom(65 << 20))
    first = run(tmp_path / "shards", "--json")
    document = json.loads(first.stdout)
    assert document["storage"]["kind"] == identify_storage(tmp_path).kind
    assert document["curve"]["probe_bytes"] == 65 << 20
    assert document["in_flight"] in (1, 2, 4, 8, 16, 32)
    assert first.exit_code == (0 if document["ok"] else 1)
    again = json.loads(run(tmp_path / "shards", "--json").stdout)
    assert again["curve"] == document["curve"]  # cached, not measured again


def test_a_good_storage_exits_0_within_80_columns(tmp_path, fake_probe):
    fake_probe(make_curve((1, 1500, 2000), (4, 3000, 5500)))
    result = run(tmp_path, "--explain")
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "\x1b" not in result.stdout
    for words in ("kind", "mount", "writable", "sequential", "in flight to use", "open + stat", "measured curve"):
        assert words in result.stdout
    assert "3,000" in result.stdout


def test_a_seeking_storage_is_marked_and_exits_1(tmp_path, fake_probe):
    fake_probe(make_curve((1, 180, 90), (2, 170, 95)))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert any(line.split()[:2] == ["!", "random"] for line in result.stdout.splitlines())


def test_a_storage_that_cannot_be_measured_is_still_described(tmp_path, fake_probe):
    fake_probe(StorageError("nothing to measure with", advice="Point at shards"))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "nothing to measure with" in " ".join(result.stdout.split())
    document = json.loads(run(tmp_path, "--json").stdout)
    assert (document["curve"], document["in_flight"], document["ok"]) == (None, None, False)


def test_settings_reach_the_probe(tmp_path, fake_probe):
    asked = fake_probe(make_curve((1, 1500, 2000)))
    run(tmp_path, "--sample-bytes", "2500000", "--refresh")
    assert asked == [{"sample_bytes": 2_500_000, "refresh": True}]


def test_markup_and_escapes_in_names_stay_text(tmp_path, fake_probe):
    fake_probe(make_curve((1, 1500, 2000)))
    folder = tmp_path / "[bold]x\x1b[31m"
    folder.mkdir()
    result = run(folder)
    assert "[bold]x\\x1b[31m" in result.stdout.replace("\n", "")
    assert "\x1b" not in result.stdout


def test_a_name_that_is_not_utf8_can_be_printed(tmp_path, fake_probe):
    fake_probe(make_curve((1, 1500, 2000)))
    folder = os.fsencode(tmp_path) + b"/\xff"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this filesystem takes only names that are text")
    assert run(os.fsdecode(folder)).exit_code == 0
    assert json.loads(run(os.fsdecode(folder), "--json").stdout)["ok"] is True


def test_a_missing_path_exits_with_2(penstock, tmp_path):
    ran = penstock("doctor", tmp_path / "nowhere")
    assert ran.code == 2
    assert "no such file or folder" in ran.err


@pytest.mark.parametrize("size", ["0", "-5", "33554433", "much", "34MB"])
def test_an_invalid_sample_size_is_refused(tmp_path, size):
    assert isinstance(run(tmp_path, f"--sample-bytes={size}").exception, SettingError)


def test_the_help_has_an_example():
    text = run("--help").stdout
    assert "penstock doctor shards/ --sample-bytes 2.5MB" in text
    assert "Exit code" in text
    assert "penstock doctor --script train.py" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_without_a_path_only_the_machine_is_checked():
    result = run()
    assert result.exit_code == 0
    assert "this machine" in result.stdout
    assert "storage" not in result.stdout
    text = " ".join(result.stdout.split())
    assert "✓ good: cores " in text
    assert "– not known: GPU not known" in text
    lines = [line.split() for line in run("--explain").stdout.splitlines()]
    assert any(words[:2] == ["✓", "cores"] for words in lines)
    assert any(words[:4] == ["–", "GPU", "not", "known"] for words in lines)


def test_everything_fits_on_one_screen_and_what_is_wrong_comes_first(tmp_path, fake_probe, machine):
    fake_probe(make_curve((1, 180, 90), (2, 170, 95)))
    good = [Check(f"part {number}", "as it should be", "It is fine as it is.") for number in range(10)]
    trouble = [Check("swap", "8 GB used", "Short of memory."), Check("/dev/shm", "64 MB", "Too small for batches.")]
    machine["machine"] = (
        *good,
        replace(trouble[0], mark=CheckStatus.ATTENTION),
        replace(trouble[1], mark=CheckStatus.BAD),
    )
    lines = run(tmp_path).stdout.splitlines()
    assert len(lines) <= 24
    assert lines[0].strip() == "3 things to act on"
    rows = [line.split()[:2] for line in lines if line.lstrip()[:1] in ("!", "✗")]
    assert rows == [["✗", "/dev/shm"], ["!", "swap"], ["!", "random"]]
    assert "this machine" in map(str.strip, lines)
    text = " ".join(" ".join(lines).split())
    assert text.index("Short of memory.") < text.index("✓ good: part 0 as it should be · part 1")


@pytest.mark.parametrize(("mark", "sign"), [(CheckStatus.ATTENTION, "!"), (CheckStatus.BAD, "✗")])
def test_one_problem_of_the_machine_exits_with_1(machine, mark, sign):
    machine["machine"] = (Check("swap", "8 GB used", "Short of memory.", mark),)
    result = run()
    assert result.exit_code == 1
    assert any(line.split()[:2] == [sign, "swap"] for line in result.stdout.splitlines())


def test_machine_and_script_are_in_the_json(machine):
    machine["script"] = (Check("line 3 num_workers", "32", "Too many.", CheckStatus.BAD),)
    result = run("--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["machine"][0] == {"name": "cores", "value": "16 of 16", "meaning": "Plenty.", "mark": "good"}
    assert document["script"][0]["mark"] == "bad"
    assert (document["storage"], document["curve"], document["rows"], document["ok"]) == (None, None, [], False)


def test_the_dataloaders_of_a_script_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.cli.doctor.examine", really_examine)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(9)\nDataLoader(ds, num_workers=4096, batch_size=24)\n")
    result = run("--script", script)
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "DataLoaders in" in text
    assert "4096 workers share" in text
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_the_real_machine_is_described(monkeypatch):
    monkeypatch.setattr("penstock.cli.doctor.examine", really_examine)
    result = run("--json")
    document = json.loads(result.stdout)
    assert result.exit_code == (0 if document["ok"] else 1)
    assert document["ok"] == all(row["mark"] in ("good", "open") for row in document["machine"])


def test_a_missing_script_exits_with_2(tmp_path):
    assert run("--script", tmp_path / "nowhere.py").exit_code == 2
    assert run("--script", tmp_path).exit_code == 2


@pytest.mark.parametrize("option", [("--refresh",), ("--sample-bytes", 100)])
def test_options_about_a_storage_need_its_path(in_process, option):
    ran = in_process("doctor", *option)
    assert (ran.code, ran.out) == (2, "")
    assert "Give its PATH" in ran.err


def test_a_storage_that_cannot_be_read_has_a_row(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("penstock.cli.doctor.storage_facts", refuse)
    result = run(tmp_path, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [(row["name"], row["value"]) for row in document["rows"]] == [("storage", "not known")]
    assert document["machine"][0]["name"] == "cores"
