"""`penstock verify`: the runs are simulated, except in the tests that start a real script."""

import json
import re
import sys
import textwrap

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import verify as command
from penstock.core.plan import Change, Plan
from penstock.errors import SettingError
from penstock.plan.document import save_plan
from penstock.plan.fingerprint import fingerprint
from penstock.recording.format import LoaderSetting
from penstock.verify import trials
from penstock.watcher.machine.facts import machine_facts
from penstock.watcher.script.runner import ScriptResult

app = typer.Typer(rich_markup_mode=None)
app.command()(command.verify)


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


@pytest.fixture
def plan(tmp_path):
    def write(name="plan.yaml", **fields):
        change = Change(scope="dataloader", name="num_workers", now=0, then=2, reason="because", gain=0.9)
        made = Plan(
            **{
                "source": "recording",
                "fingerprint": fingerprint(machine_facts()),
                "samples_s": 100.0,
                "planned_samples_s": 190.0,
                "changes": (change,),
                "dataloader": {"num_workers": 2, "prefetch_factor": 2},
                **fields,
            }
        )
        save_plan(made, tmp_path / name)
        return name

    return write


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").touch()
    return ("--", sys.executable, "train.py")


@pytest.fixture
def simulated(monkeypatch, record, tmp_path):
    """Replace each run by a recording whose steps wait for the returned times."""
    wait_s, already = {"before": 0.03, "after": 0.001}, {}
    wait_s["already"] = already  # settings that the script has without the plan

    def run_script(script, path, *, live, trial):
        trial.output.write_text("")
        settings = "after" if trial.dataloader else "before"
        prefetch = LoaderSetting(in_force=2 if trial.dataloader else already.get("prefetch_factor", 4))
        made = record("made.jsonl", wait_s=wait_s[settings], settings={"prefetch_factor": prefetch})
        path.write_bytes(made.read_bytes())
        return ScriptResult(0, (path,), False)

    monkeypatch.setattr(trials, "run_script", run_script)
    return wait_s


@pytest.mark.parametrize(
    ("before_s", "after_s", "code", "word"),
    [(0.03, 0.001, 0, "Better"), (0.001, 0.03, 1, "Worse"), (0.01, 0.01, 4, "Inconclusive")],
)
def test_the_exit_code_is_the_answer(run, plan, script, simulated, before_s, after_s, code, word):
    simulated.update(before=before_s, after=after_s)
    ran = run(plan(), *script)
    assert ran.exit_code == code
    assert ran.stdout.startswith(f"{word}: ")
    assert "Predicted +90%" in ran.stdout
    assert "7 runs of " in ran.stderr
    assert "train.py, the whole script each" in ran.stderr
    assert "with num_workers=2, prefetch_factor=2, 3 times each, in turns" in ran.stderr
    assert re.search(r"a run took .*: (about|nearly)", ran.stderr)


def test_json_is_alone_on_stdout(run, plan, script, simulated):
    ran = run(plan(), "--json", "--repeats", 1, *script)
    document = json.loads(ran.stdout)
    assert document["answer"] == "better"
    assert len(document["runs"]) == 2
    assert document["predicted_gain"] == pytest.approx(0.9)


def test_a_plan_from_probes_predicts_nothing_for_this_script(run, plan, script, simulated):
    ran = run(plan(source="probes"), "--repeats", 1, *script)
    assert "was made from probes" in " ".join(ran.stdout.split())
    assert "Predicted" not in ran.stdout


def test_the_history_has_every_verification_and_the_error_of_the_model(run, plan, script, simulated):
    assert "no verification" in run("--history").stdout
    for _ in range(2):
        run(plan(), "--repeats", 1, *script)
    ran = run("--history")
    assert ran.exit_code == 0
    assert "2 predictions: the median error of the predicted rate is" in ran.stdout
    document = json.loads(run("--history", "--json").stdout)
    assert [entry["dataloader"]["num_workers"] for entry in document["entries"]] == [2, 2]
    assert document["model"]["count"] == 2


def test_a_plan_for_another_machine_is_reported_before_the_runs(run, plan, script, simulated):
    elsewhere = {"machine": {"usable_cores": 4096, "platform": "Plan9 mips"}}
    ran = run(plan(fingerprint=elsewhere), *script)
    before, _, after = ran.stderr.partition("7 runs")
    assert "4096 usable cores" in before
    assert after


def test_recordings_are_kept_in_the_given_folder(run, plan, script, simulated, tmp_path):
    run(plan(), "--repeats", 1, "-o", "kept", *script)
    assert {path.name for path in (tmp_path / "kept").glob("*.jsonl")} == {
        "first.jsonl",
        "before1.jsonl",
        "after1.jsonl",
    }


def test_a_history_that_cannot_be_written_does_not_lose_the_result(run, plan, script, simulated, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    ran = run(plan(), *script)
    assert ran.exit_code == 0
    assert "not added to the history" in ran.stderr


def test_ctrl_c_exits_with_130(run, plan, script, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "run_script", interrupted)
    assert run(plan(), *script).exit_code == 130


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "there is no plan"),
        (("plan.yaml",), "there is no command"),
        (("plan.yaml", "--", "torchrun", "train.py"), "torch.distributed.run"),
        (("plan.yaml", "--drop", ".", "--", sys.executable, "train.py"), "--drop is for cold runs"),
        (("--history", "plan.yaml"), "--history runs nothing"),
        (("empty.yaml", "--", sys.executable, "train.py"), "changes nothing of a torch DataLoader"),
        (("plan.yaml", "--steps", "19", "--", sys.executable, "train.py"), "Give --steps 20 or more"),
        (("none.yaml", "--", sys.executable, "train.py"), "none.yaml"),
    ],
)
def test_invalid_arguments_are_refused_before_the_runs(run, plan, script, arguments, words):
    plan()
    plan("empty.yaml", dataloader={})
    with pytest.raises(SettingError) as refused:
        run(*arguments)
    assert words in str(refused.value)


def test_the_help_has_an_example(run):
    ran = run("--help")
    for words in ("penstock verify plan.yaml --steps 300 -- python train.py", "SIGINT", "4 inconclusive"):
        assert words in ran.stdout


def test_the_error_of_a_failing_script_quotes_it(run, plan, tmp_path):
    (tmp_path / "train.py").write_text("raise LookupError('no data')")
    ran = run(plan(), "--", sys.executable, "train.py")
    assert ran.exit_code == 3
    assert "LookupError: no data" in ran.stderr


def test_a_plan_with_the_settings_of_the_script_stops_after_the_first_run(run, plan, script, simulated, tmp_path):
    simulated["already"]["prefetch_factor"] = 2
    with pytest.raises(SettingError, match=r"the plan changes nothing: .*num_workers=2, prefetch_factor=2 already"):
        run(plan(), "-o", "kept", *script)
    assert [path.name for path in (tmp_path / "kept").glob("*.jsonl")] == ["first.jsonl"]


@pytest.mark.slow
def test_a_real_training_is_verified(run, plan, tmp_path):
    text = """
        import time
        from torch.utils.data import DataLoader, Dataset

        class SlowDataset(Dataset):
            def __len__(self):
                return 10**6
            def __getitem__(self, index):
                time.sleep(0.004)  # like a request to a store
                return index

        if __name__ == "__main__":
            print("this must not be on stdout")
            for batch in DataLoader(SlowDataset(), batch_size=4):
                pass
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text))
    ran = run(plan(), "--repeats", 1, "--steps", 60, "--json", "-o", "kept", "--", sys.executable, "train.py")
    document = json.loads(ran.stdout)
    assert (ran.exit_code, document["answer"]) == (0, "better")
    assert [(each["workers"], each["steps"]) for each in document["runs"]] == [(0, 54), (2, 54)]
    printed = (tmp_path / "kept" / "after1.txt").read_text()
    assert "this must not be on stdout\n" in printed
    assert "the plan changes a DataLoader: num_workers 0 → 2" in printed
