"""Scripts without a loader: a function that draws batches can be watched, and without it the step still is."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import penstock
from penstock.diagnose.verdict import diagnose, diagnose_run
from penstock.plan.from_diagnosis import plan_from_diagnosis
from penstock.recording.reader import load
from penstock.testing import FakeClock
from penstock.watcher.hooks import install
from penstock.watcher.start import WatchedRun


def train(get_batch, steps=60, evaluate_every=0):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        if evaluate_every and step and step % evaluate_every == 0:
            with torch.no_grad():
                for _ in range(3):
                    model(get_batch("val"))
        optimizer.zero_grad()
        model(get_batch("train")).sum().backward()
        optimizer.step()


@pytest.fixture
def watched(tmp_path):
    """Return a clock, and a function that ends the run of `penstock run` and returns its recording."""
    run = WatchedRun(tmp_path / "run.jsonl")
    run.session.clock = FakeClock(run.session.clock_start)
    undo = install(run)

    def end():
        undo()
        run.close()
        return load(tmp_path / "run.jsonl")

    yield run.session, end
    end()


def batch_function(session, seconds):
    def get_batch(split):
        session.clock.sleep(seconds)
        return torch.zeros(8, 4)

    return get_batch


def watched_function(session, seconds):
    function = penstock.watch.__globals__["WatchedFunction"]

    class Run:
        pass

    run = Run()
    run.session = session
    return function(batch_function(session, seconds), "", run)


def test_each_call_of_a_watched_function_is_the_wait_of_a_step(watched):
    session, end = watched
    train(watched_function(session, 0.01))
    recording = end()
    assert recording.loaders[0].type == "function"
    assert recording.loaders[0].name == "get_batch"
    steps = [step for step in recording.steps if step.loader == 0]
    assert len(steps) == 59  # the last one has no end
    assert all(step.wait_s == pytest.approx(0.01) and step.samples == 8 for step in steps)
    assert {"forward", "backward", "optimizer"} <= steps[20].phases.keys()


def test_calls_without_gradients_are_an_evaluation(watched):
    session, end = watched
    train(watched_function(session, 0.01), evaluate_every=20)
    recording = end()
    assert [line.name for line in recording.loaders.values()] == ["get_batch", "get_batch, evaluation"]
    paused = [step for step in recording.steps if step.loader == 0 and "evaluation" in step.phases]
    assert len(paused) == 2
    assert paused[0].phases["evaluation"] == pytest.approx(0.03)
    assert diagnose(recording).account["evaluation"] == pytest.approx(0.06, rel=0.05)


def test_a_slow_function_alternates_with_the_step(watched):
    session, end = watched
    step = nn.Linear.forward

    def slow_forward(module, x):
        session.clock.sleep(0.03)
        return step(module, x)

    nn.Linear.forward = slow_forward
    try:
        train(watched_function(session, 0.02))
    finally:
        nn.Linear.forward = step
    found = diagnose(end())
    assert found.findings[0].rule == "no_overlap"
    assert found.findings[0].gain == pytest.approx(0.05 / 0.03 - 1, rel=0.05)


def test_watch_takes_functions_and_loaders(tmp_path):
    @penstock.watch
    def get_batch(split):
        return split

    assert get_batch("train") == "train"
    assert get_batch.__name__ == "get_batch"
    assert list(penstock.watch([1, 2])) == [1, 2]


def test_a_script_without_a_loader_has_steps_that_end_with_the_optimizer(watched):
    session, end = watched
    train(batch_function(session, 0.01))
    recording = end()
    assert [line.type for line in recording.loaders.values()] == ["none"]
    assert len(recording.steps) == 60 - 3
    found = diagnose(recording)
    assert found.verdict in ("undetermined", "findings")
    assert found.sentence.startswith("The script uses no loader: a step takes 10 ms at the median")
    assert {"forward", "backward", "optimizer"} <= recording.steps[10].phases.keys()
    assert plan_from_diagnosis(diagnose_run(recording)).dataloader == {}


def test_steps_of_an_optimizer_in_the_steps_of_a_loader_are_not_counted_again(watched):
    _, end = watched
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(20, 4))):
        model(x).sum().backward()
        optimizer.step()
    assert [line.type for line in end().loaders.values()] == ["torch"]


SCRIPT = """
import torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(40):
    optimizer.zero_grad()
    model(torch.zeros(8, 4)).sum().backward()
    optimizer.step()
"""


def test_an_unchanged_script_without_a_loader_is_recorded(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "penstock", "run", "--no-live", "-o", "run.jsonl", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert "The script uses no loader: a step takes" in done.stderr
    recording = load(tmp_path / "run.jsonl")
    assert [line.type for line in recording.loaders.values()] == ["none"]
    assert len(recording.steps) >= 30
    assert torch.optim.Optimizer.zero_grad.__module__ == "torch.optim.optimizer"
