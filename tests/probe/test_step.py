import sys
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.core.cores import loader_cores
from penstock.errors import SettingError
from penstock.probe import step as step_module
from penstock.probe.results import ScriptProbe, StepProbe, StepTime
from penstock.probe.step import probe_step, read_script_probe
from penstock.recording.format import EventLine, RunLine
from penstock.recording.reader import Recording
from penstock.testing import FakeClock

BATCH = {"image": np.zeros((16, 3, 8, 8), np.uint8)}


class FakeLoad:
    """Replaces the busy processes; `count` is their number while they run."""

    def __init__(self):
        self.count = 0
        self.started = []

    def __call__(self, count):
        self.started.append(count)
        return self

    def __enter__(self):
        self.count = self.started[-1]

    def __exit__(self, *_):
        self.count = 0


@pytest.fixture
def load(monkeypatch):
    load = FakeLoad()
    monkeypatch.setattr(step_module, "cpu_load", load)
    return load


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


def test_the_step_is_timed_alone_and_beside_busy_processes(load, no_cuda):
    clock = FakeClock()
    found = probe_step(lambda batch: clock.advance(0.15 if load.count else 0.1), BATCH, seconds=10, clock=clock)
    assert found.alone == StepTime(pytest.approx(40, abs=1), pytest.approx(0.1))
    assert found.beside == StepTime(27, pytest.approx(0.15))
    assert (found.samples, found.device, found.burners) == (16, "cpu", loader_cores())
    assert found.slowdown == pytest.approx(1.5)
    assert found.samples_per_s == pytest.approx(16 / 0.15)
    assert clock.now() <= 10


def test_the_step_is_always_called_with_the_given_batch(load, no_cuda):
    clock, seen = FakeClock(), []
    probe_step(lambda batch: (seen.append(batch), clock.advance(1.0)), BATCH, seconds=10, clock=clock)
    assert all(batch is BATCH for batch in seen)


def test_a_step_longer_than_the_time_runs_four_times(load, no_cuda):
    clock, steps = FakeClock(), []
    found = probe_step(lambda batch: (steps.append(1), clock.advance(60.0)), BATCH, seconds=1, clock=clock)
    assert len(steps) == 4  # two to warm up, one alone, one beside the load
    assert found.alone == StepTime(1, 60.0)


def test_warm_up_steps_are_not_timed(load, no_cuda):
    clock, costs = FakeClock(), iter([5.0, 0.1])
    found = probe_step(lambda batch: clock.advance(next(costs, 0.01)), BATCH, seconds=10, clock=clock)
    assert found.alone.step_s == pytest.approx(0.01)


def test_real_processes_keep_the_cores_busy(no_cuda):
    clock = FakeClock()
    found = probe_step(lambda batch: clock.advance(0.5), BATCH, seconds=4, burners=2, clock=clock)
    assert found.burners == 2


def test_a_real_torch_step_is_timed_by_the_real_clock():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    found = probe_step(step, torch.ones(4, 8), seconds=0.3, burners=1)
    assert found.samples == 4
    assert 0 < found.alone.step_s < 0.3
    assert found.beside.steps >= 1


class Cuda:
    """A device that executes queued work; the host is always ahead of it."""

    def __init__(self, clock):
        self.clock, self.done_s, self.waits = clock, 0.0, 0

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def work(self, seconds):
        self.done_s = max(self.done_s, self.clock.now()) + seconds

    def Event(self, enable_timing):
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, cuda):
        self.cuda, self.at_s = cuda, 0.0

    def record(self):
        self.at_s = max(self.cuda.done_s, self.cuda.clock.now())

    def synchronize(self):
        self.cuda.waits += 1
        self.cuda.clock.advance(max(0.0, self.at_s - self.cuda.clock.now()))

    def elapsed_time(self, end_event):
        return (end_event.at_s - self.at_s) * 1e3


def test_on_cuda_only_the_events_at_the_ends_are_waited_for(load, monkeypatch):
    clock = FakeClock()
    cuda = Cuda(clock)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    found = probe_step(lambda batch: cuda.work(0.02), BATCH, seconds=10, clock=clock)
    assert found.device == "cuda"
    for timed in (found.alone, found.beside):
        assert timed == StepTime(pytest.approx(200, abs=1), pytest.approx(0.02))
    assert cuda.waits == 4  # two warm-up steps, and one end of each series
    assert clock.now() <= 10


def test_a_failing_step_is_an_error_with_the_reason(load, no_cuda):
    def step(batch):
        raise KeyError("features")

    with pytest.raises(SettingError, match="the step failed on its batch: KeyError: 'features'"):
        probe_step(step, BATCH)
    assert load.started == []


def test_a_step_that_needs_a_missing_gpu_gets_advice(load):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SettingError, match="No GPU can be used here"):
        probe_step(lambda batch: torch.zeros(1, device="cuda"), BATCH)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_invalid_durations_are_refused(seconds):
    with pytest.raises(SettingError, match="no time to measure in"):
        probe_step(print, BATCH, seconds=seconds)


def test_a_probe_without_busy_processes_is_refused():
    with pytest.raises(SettingError, match="flatters"):
        probe_step(print, BATCH, burners=0)


def test_the_result_has_a_one_line_text():
    found = StepProbe(alone=StepTime(10, 0.02), beside=StepTime(8, 0.025), burners=2, samples=16, device="cpu")
    assert str(found) == "25 ms a step beside 2 busy processes (20 ms alone): at most 640 samples/s"
    unknown = StepProbe(alone=StepTime(1, 0.02), beside=StepTime(1, 0.02), burners=1, samples=None, device="cpu")
    assert unknown.samples_per_s is None
    assert "samples/s" not in str(unknown)


# -- the probe of a script -----------------------------------------------------------------------------------------


def probe_event(seconds=0.0, **detail):
    return EventLine(what="probe", at_s=1.0, seconds=seconds, detail=detail)


def read(*events):
    return read_script_probe(Recording(run=RunLine(probe="compute"), loaders={}, events=events))


def test_recorded_stages_become_step_times():
    found = read(
        probe_event(2.0, stage="data", steps=4, samples=8, device="cuda"),
        probe_event(1.0, stage="alone", steps=10, samples=8, device="cuda"),
        probe_event(1.5, stage="beside", steps=10, samples=8, device="cuda", burners=3),
        probe_event(stage="end", why=""),
    )
    assert found.data == StepTime(4, 0.5)
    assert (found.step.alone, found.step.beside) == (StepTime(10, 0.1), StepTime(10, 0.15))
    assert (found.step.burners, found.step.samples, found.step.device) == (3, 8, "cuda")
    assert found.step.samples_per_s == pytest.approx(8 / 0.15)


def test_a_missing_stage_is_none_and_the_reason_is_kept():
    found = read(probe_event(1.0, stage="alone", steps=10), probe_event(stage="end", why="no more processes"))
    assert (found.data, found.beside, found.step, found.why) == (None, None, None, "no more processes")
    assert read() == ScriptProbe()


@pytest.mark.parametrize(
    "detail",
    [
        {},
        {"stage": "alone"},
        {"stage": "alone", "steps": 0},
        {"stage": "alone", "steps": "ten"},
        {"stage": "other", "steps": 1},
    ],
)
def test_damaged_events_are_ignored(detail):
    assert read(probe_event(1.0, **detail), EventLine(what="gc", at_s=1.0)) == ScriptProbe()
    assert read(probe_event(0.0, stage="alone", steps=1)).alone is None
