"""`penstock demo`: once for real, with the smallest shards; else with a result that is made up."""

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
from penstock.demo import forecast as outlook
from penstock.demo import stages
from penstock.demo.demo import DemoResult
from penstock.demo.loss_agreement import loss_agreement
from penstock.demo.shards import DemoSize
from penstock.demo.stages import Stage, StageResult
from penstock.errors import SettingError
from penstock.recording.reader import load

app = typer.Typer(rich_markup_mode=None)
app.command()(command.demo)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """As the program does, errors as they are."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        ran = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran

    return run


@pytest.mark.slow
def test_the_whole_loop_on_the_smallest_shards(run, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "Size", partial(DemoSize, scale=0.0625))
    monkeypatch.setattr(outlook, "PROBE_S", 0.5)
    monkeypatch.setattr(stages, "EXACT_S", 0.2)
    ran = run("--samples", 20, "--seconds", 1, "--json")
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
def made_up(tmp_path, monkeypatch):
    """A result whose last stage has these losses."""

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
        monkeypatch.setattr(command.DemoRun, "go", lambda way: result)

    return put


def test_before_and_after_stand_in_one_table(run, made_up, tmp_path):
    made_up()
    ran = run()
    assert ran.exit_code == 0
    rows = [line.split() for line in ran.stdout.splitlines() if line.startswith(" the ")]
    assert [row[1] for row in rows] == ["before", "tuned", "loader", "packed"]
    assert rows[0][3:] == ["100", "80%"]
    assert rows[1][3:] == ["110", "80%", "+8%", "+10%", "the", "same"]
    assert rows[2][3:] == ["450", "80%", "×4.2", "×4.5", "within", "0.0002"]
    assert rows[3][3:] == ["600", "80%", "not", "known", "×6", "the", "same"]
    assert str(tmp_path / "report.html") in ran.stdout.replace("\n", "")


def test_losses_that_should_agree_and_do_not_are_told_and_exit_code_1(run, made_up):
    made_up(last=(0.5, 0.5))
    ran = run()
    assert ran.exit_code == 1
    assert "DIFFER by 1" in ran.stdout


def test_a_busy_machine_is_told_beside_the_figures(run, made_up):
    made_up()
    assert "Other programs" not in run().stdout
    made_up(others_cpu=1.25)
    assert "Other programs took up to 1.2 cores meanwhile" in run().stdout


def test_an_interrupted_demo_says_so(run, monkeypatch):
    def interrupted(way):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.DemoRun, "go", interrupted)
    ran = run()
    assert ran.exit_code == 130
    assert "interrupted" in ran.stderr


def test_a_folder_that_is_not_from_a_demo_is_refused(penstock, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    ran = penstock("demo", "--folder", "mine")
    assert ran.code == 2
    assert "not from a demo" in ran.err
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_without_torch_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr("penstock.cli.arguments.find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"penstock\[torch\]"):
        run()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups here")
def test_ctrl_c_during_a_training_leaves_nothing_running(tmp_path):
    command = [sys.executable, "-m", "penstock", "demo", "--samples", "16", "--seconds", "60"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True) as demo:
        assert demo.stdout.readline().startswith("made ")
        for _ in range(6):  # Python drops an interrupt that comes while it forks; whoever presses presses again
            demo.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                demo.wait(10)
                break
        assert demo.returncode == 130
    assert _gone(demo.pid)


def _gone(group):
    """Those that were told to end may still be at it for a moment."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
