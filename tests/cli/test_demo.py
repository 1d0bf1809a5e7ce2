"""`penstock demo`: one real run with the smallest shards; the other tests print a given result."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import demo as command
from penstock.core.finding import Diagnosis
from penstock.core.plan import Plan
from penstock.demo import forecast, stages
from penstock.demo.demo import DemoResult
from penstock.demo.shards import DemoSize
from penstock.demo.stages import Stage, StageResult, loss_agreement
from penstock.errors import SettingError
from penstock.recording.reader import load

app = typer.Typer(rich_markup_mode=None)
app.command()(command.demo)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the command; errors are raised."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        ran = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran

    return run


@pytest.mark.slow
def test_the_demo_runs_all_stages_on_the_smallest_shards(run, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "DemoSize", partial(DemoSize, scale=0.0625))
    monkeypatch.setattr(forecast, "PROBE_S", 0.5)
    monkeypatch.setattr(stages, "EXACT_S", 0.2)
    ran = run("--samples", 20, "--duration", 1, "--json")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    runs = found["stages"]
    assert [each["name"] for each in runs] == ["before", "tuned", "loader", "packed"]
    assert all(each["images_s"] > 0 and 0 <= each["wait_share"] <= 1 for each in runs)
    assert runs[0]["gain"] == 0
    assert all(each["predicted_gain"] is not None for each in runs[1:])
    assert set(found["losses"]) == {"tuned", "loader", "exact", "packed"}
    assert all(losses["agrees"] for losses in found["losses"].values())
    assert found["plan"]["source"] == "recording"
    folder = tmp_path / "demo"
    assert len(list((folder / "shards").glob("*.tar"))) == 3
    assert (folder / "packed" / "manifest.json").exists()
    assert "Loader, packed shards: " in (folder / "report.html").read_text()
    assert (folder / "plan.yaml").exists()
    kinds = [load(folder / f"{name}.jsonl").loaders[0].type for name in ("before", "tuned", "loader", "packed")]
    assert kinds == ["torch", "torch", "penstock", "penstock"]
    assert "made     24 samples in 3 shards" in ran.stderr


def measured(name, samples_s, losses, tmp_path, gain=None, others_cpu=0.0):
    stage = Stage(name=name, title=f"the {name} one", predicted_gain=gain)
    return StageResult(
        stage=stage,
        recording=tmp_path / f"{name}.jsonl",
        samples_s=samples_s,
        wait_share=0.8,
        workers=2,
        others_cpu=others_cpu,
        losses=tuple(losses),
    )


@pytest.fixture
def demo_result(tmp_path, monkeypatch):
    """Return a function that replaces the demo's run by a result whose last stage has given losses."""

    def put(last=(0.5, 0.25), others_cpu=0.0):
        stages = [
            measured("before", 100.0, (0.5, 0.25), tmp_path),
            measured("tuned", 110.0, (0.5, 0.25), tmp_path, 0.08),
            measured("loader", 450.0, (0.5001, 0.25), tmp_path, 3.2),
            measured("packed", 600.0, last, tmp_path, others_cpu=others_cpu),
        ]
        losses = {each.stage.name: each.losses for each in stages[1:]} | {"exact": (0.5, 0.25)}
        agreements = {
            name: loss_agreement((0.5, 0.25), found, same_pixels=name in ("tuned", "exact"))
            for name, found in losses.items()
        }
        result = DemoResult(
            diagnosis=Diagnosis(verdict="findings", sentence="Decoding is the bottleneck."),
            plan=Plan(source="recording", fingerprint={}),
            stages=tuple(stages),
            agreements=agreements,
            report=tmp_path / "report.html",
            seconds=80.0,
        )
        monkeypatch.setattr(command.DemoRun, "run", lambda demo: result)

    return put


def test_all_runs_are_in_one_table(run, demo_result, tmp_path):
    demo_result()
    ran = run()
    assert ran.exit_code == 0
    rows = [line.split() for line in ran.stdout.splitlines() if line.startswith(" the ")]
    assert [row[1] for row in rows] == ["before", "tuned", "loader", "packed"]
    assert rows[0][3:] == ["100", "80%"]
    assert rows[1][3:] == ["110", "80%", "+8%", "+10%", "the", "same"]
    assert rows[2][3:] == ["450", "80%", "×4.2", "×4.5", "within", "0.0002"]
    assert rows[3][3:] == ["600", "80%", "not", "known", "×6.0", "the", "same"]
    assert str(tmp_path / "report.html") in ran.stdout.replace("\n", "")


def test_losses_that_differ_are_reported_with_exit_code_1(run, demo_result):
    demo_result(last=(0.5, 0.5))
    ran = run()
    assert ran.exit_code == 1
    assert "DIFFER by 1" in ran.stdout


def test_a_busy_machine_is_reported(run, demo_result):
    demo_result()
    assert "Other programs" not in run().stdout
    demo_result(others_cpu=1.25)
    assert "Other programs used up to 1.2 cores meanwhile" in run().stdout


def test_an_interrupted_demo_exits_with_130(run, monkeypatch):
    def interrupted(demo):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.DemoRun, "run", interrupted)
    assert run().exit_code == 130


def test_a_folder_that_is_not_from_a_demo_is_refused(penstock, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").write_text("x")
    ran = penstock("demo", "-o", "own")
    assert ran.code == 2
    assert "not from a demo" in ran.err
    assert (tmp_path / "own" / "thesis.txt").exists()


def test_without_torch_the_error_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr("penstock.cli.arguments.find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"penstock\[torch\]"):
        run()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups here")
def test_ctrl_c_during_a_training_ends_all_processes(tmp_path):
    command = [sys.executable, "-m", "penstock", "demo", "--samples", "16", "--duration", "60"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True) as demo:
        assert demo.stdout.readline().startswith("made ")
        for _ in range(6):  # Python loses an interrupt that arrives during a fork, so it is sent again
            demo.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                demo.wait(10)
                break
        assert demo.returncode == 130
    assert _group_has_ended(demo.pid)


def _group_has_ended(group):
    """Return whether all processes of the group have ended within ten seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
