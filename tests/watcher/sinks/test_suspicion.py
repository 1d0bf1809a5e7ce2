"""The live output of `penstock run`: when a line is printed, and what it says."""

import random

import pytest

from penstock.recording.format import LoaderLine, LoaderSetting, StepLine
from penstock.watcher.sinks.suspicion import SuspicionLines


class Run:
    """A run whose times the test sets, and the lines that were printed with the time of each."""

    def __init__(self, workers=4):
        self.printed = []
        self.at_s = 0.0
        self.lines = SuspicionLines(lambda text: self.printed.append((self.at_s, text)))
        self.batches = {}
        self.workers = workers
        self.rng = random.Random(0)
        self.add_loader(0)

    def add_loader(self, loader, name=""):
        setting = LoaderSetting(requested=self.workers, in_force=self.workers)
        self.lines.handle(LoaderLine(loader=loader, name=name, settings={"num_workers": setting}))

    def steps(self, seconds, slow_s=0.0, ready=0, loader=0, phases=None, first=False, worker=None):
        """Add steps of 50 ms; every fourth one waits for `slow_s`, the others for 1 ms give or take a third."""
        end_s = self.at_s + seconds
        while self.at_s < end_s:
            batch = 0 if first else self.batches.get(loader, 1)
            self.batches[loader] = batch + 1
            slow = slow_s and batch % 4 == 0
            wait_s = slow_s if slow else self.rng.uniform(0.0007, 0.0013)
            awaited = worker if worker is not None else self.rng.randrange(self.workers)
            line = StepLine(
                loader=loader, batch=batch, at_s=self.at_s, wait_s=wait_s, step_s=0.05, samples=8,
                outstanding=8, ready=ready if slow else 6, worker=awaited, phases=phases or {},
            )  # fmt: skip
            first = False
            self.lines.handle(line)
            self.at_s += wait_s + 0.05

    @property
    def suspicions(self):
        return [text.removeprefix("penstock: ").partition(" · ")[0] for _, text in self.printed]


def test_a_line_comes_when_the_suspicion_changes_and_otherwise_once_a_minute():
    run = Run()
    run.steps(130)
    run.steps(100, slow_s=0.3)
    run.steps(30)
    assert run.suspicions == ["data arrives in time"] * 3 + ["all workers behind"] * 2 + ["data arrives in time"]
    gaps = [later[0] - earlier[0] for earlier, later in zip(run.printed[:3], run.printed[1:3], strict=False)]
    assert min(gaps) >= 60


def test_the_same_evidence_gives_the_same_suspicion():
    run = Run()
    run.steps(600, slow_s=0.3, ready=6, worker=2)
    assert len(run.printed) <= 11
    assert set(run.suspicions[1:]) == {"lagging worker"}


def test_the_line_has_the_share_of_waiting_the_rate_and_the_longest_wait():
    run = Run()
    run.steps(70, slow_s=0.3, ready=6, worker=2)
    words = run.printed[-1][1]
    assert words.startswith("penstock: lagging worker · 60% of the time is waiting · ")
    assert "samples/s" in words
    assert words.endswith("longest wait 300 ms for worker 2")


@pytest.mark.parametrize(("slow_s", "suspicion"), [(0.015, "data arrives in time"), (0.03, "waiting for data")])
def test_between_the_limits_the_suspicion_stays(slow_s, suspicion):
    run = Run()
    run.steps(20, slow_s=0.0 if suspicion == "data arrives in time" else 0.2, ready=4)
    run.steps(30, slow_s=slow_s, ready=4)
    assert set(run.suspicions) == {suspicion}


def test_waits_for_the_start_of_workers_are_named():
    run = Run()
    for _ in range(6):
        run.lines.handle(StepLine(loader=0, batch=0, at_s=run.at_s, wait_s=2.0, step_s=0.05, samples=8))
        run.at_s += 2.05
        run.steps(3)
    assert "starting workers at each epoch" in run.suspicions


def test_loaders_are_named_by_the_variable_or_by_what_they_feed():
    run = Run()
    run.add_loader(1)
    run.steps(3, loader=1, slow_s=0.3)
    run.steps(20, slow_s=0.3, phases={"backward": 0.02})
    assert " · train · " in run.printed[-1][1]
    run.steps(30, loader=1, slow_s=0.3)
    assert " · val · " in run.printed[-1][1]
    named = Run()
    named.add_loader(0, "batches")
    named.add_loader(1, "held_out")
    named.steps(3, loader=1)
    named.steps(20, slow_s=0.3)
    assert " · batches · " in named.printed[-1][1]


def test_other_ranks_print_nothing(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = Run()
    run.steps(30, slow_s=0.3)
    assert run.printed == []
