"""Fixtures that run commands as a user does, and recordings for them."""

import json
import subprocess
import sys

import pytest

from penstock.cli import main
from penstock.recording.format import (
    EpochEndLine,
    EpochStartLine,
    FetchLine,
    LoaderLine,
    LoaderSetting,
    Machine,
    RunLine,
    StepLine,
)
from penstock.recording.writer import Recorder


class Ran:
    def __init__(self, code, out, err):
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def penstock(tmp_path):
    """Return a function that runs the program in a process of its own."""

    def run(*arguments, cwd=tmp_path):
        command = [sys.executable, "-m", "penstock", *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def in_process(tmp_path, monkeypatch, capsys):
    """Return a function that runs the program in this process, which is quicker, in the test's own folder."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main.main()
        out, err = capsys.readouterr()
        return Ran(exited.value.code or 0, out, err)

    return run


@pytest.fixture
def record(tmp_path):
    """Return a function that writes the recording of a run whose steps are all alike."""

    def write(file="run.jsonl", *, wait_s=0.0001, step_s=0.02, count=60, workers=2, fetched=True, **loader):
        recorder = Recorder(tmp_path / file, RunLine(command=("train.py",), machine=Machine(cores=4, usable_cores=4)))
        settings = {"num_workers": LoaderSetting(requested=workers, in_force=workers), **loader.pop("settings", {})}
        recorder.put(
            LoaderLine(loader=0, type="torch", settings=settings, batches=count, **{"name": "train", **loader})
        )
        recorder.put(EpochStartLine(loader=0, epoch=0, at_s=0.0))
        for batch in range(count):
            at_s = batch * (wait_s + step_s)
            worker = batch % workers if workers else -1
            if fetched:
                recorder.put(
                    FetchLine(loader=0, batch=batch, worker=worker, at_s=at_s, fetch_s=wait_s, cpu_s=wait_s * 0.9)
                )
            recorder.put(
                StepLine(loader=0, batch=batch, at_s=at_s, wait_s=wait_s, step_s=step_s, samples=8, worker=worker)
            )
        recorder.put(EpochEndLine(loader=0, epoch=0, at_s=count * (wait_s + step_s)))
        recorder.close()
        return tmp_path / file

    return write
