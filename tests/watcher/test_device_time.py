import pytest

from penstock.recording.format import EndLine, EpochEndLine, StepLine, SystemLine
from penstock.testing import FakeClock
from penstock.watcher.device_time import MAX_WAITING_LINES, DeferredSteps, DeviceTimer
from penstock.watcher.hooks.device import watch_graph_captures
from penstock.watcher.hooks.in_use import InUse
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.session import Session


class FakeDevice:
    """A GPU whose stream has reached the first `reached` of its recorded events; they are 10 ms apart."""

    def __init__(self):
        self.recorded = 0
        self.reached = 0
        self.events_made = 0
        self.broken = False
        self.usable = True
        self.capturing = False
        self.on_query = None
        """Called once, inside the next query."""

    def make_event(self):
        self.events_made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device.recorded += 1
        self.position = self.device.recorded

    def query(self):
        on_query, self.device.on_query = self.device.on_query, None
        if on_query is not None:
            on_query()
        if self.device.capturing:
            pytest.fail("a query during a capture makes the capture fail")
        if self.device.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.position <= self.device.reached

    def elapsed_time(self, end_event):
        return 10.0 * (end_event.position - self.position)  # ms


class ListSink:
    """A sink that keeps its lines."""

    def __init__(self):
        self.lines = []
        self.closed = False

    def put(self, line):
        self.lines.append(line)

    def close(self):
        self.closed = True


class TimedTraining:
    """A training loop whose phases are timed on a fake GPU."""

    def __init__(self):
        self.device, self.sink = FakeDevice(), ListSink()
        self.session = Session([], FakeClock())
        self.timer = DeviceTimer(self.session, self.device.make_event, lambda: self.device.usable)
        self.deferred = DeferredSteps(self.sink, self.timer)
        self.session._sinks.append(self.deferred)
        self.phases = PhaseHooks(self.session, self.timer)
        self.tracker = self.session.begin_epoch(0, 0, lambda batch: 1)
        self.sink.lines.clear()

    def end_step(self):
        self.tracker.batch_requested()
        self.session.flush()

    def step(self, *names):
        """End the current step, and begin one with these phases."""
        self.end_step()
        self.tracker.batch_received(None)
        for name in names:
            self.phase(name)

    def phase(self, name):
        self.phases.enter(name)
        self.phases.leave()

    @property
    def device_phases(self):
        """The GPU times of each step that the sink has received."""
        return [line.device_phases for line in self.sink.lines if isinstance(line, StepLine)]


@pytest.fixture
def training():
    return TimedTraining()


def test_a_step_is_held_back_until_the_device_has_reached_its_events(training):
    training.step("forward", "backward")
    training.end_step()
    assert training.sink.lines == []
    training.device.reached = 3  # not the fourth event, which is the end of backward
    training.step("forward")
    training.end_step()
    assert training.sink.lines == []
    training.device.reached = 4
    training.step("forward")
    training.end_step()
    assert training.device_phases == [{"forward": 0.01, "backward": 0.01}]


def test_phases_of_the_host_alone_record_no_events(training):
    training.step("gc", "sync", "log")
    training.end_step()
    assert training.device.recorded == 0
    assert training.device_phases == [{}]


def test_a_phase_inside_another_counts_in_both(training):
    training.step()
    training.phases.enter("optimizer")
    training.phase("forward")
    training.phase("forward")
    training.phases.leave()
    training.device.reached = 100
    training.end_step()
    assert training.device_phases == [{"optimizer/forward": 0.02, "optimizer": pytest.approx(0.05)}]


def test_a_phase_still_open_when_a_new_batch_arrives_is_dropped(training):
    training.step()
    training.phases.enter("forward")
    training.step("sync", "backward")
    training.device.reached = 100
    training.tracker.end()
    assert training.device_phases == [{}, {"backward": 0.01}]


def test_steps_keep_their_order_while_lines_of_the_machine_pass_at_once(training):
    training.step("forward")
    training.tracker.end()
    training.deferred.put(SystemLine(at_s=1.0))
    assert [type(line) for line in training.sink.lines] == [SystemLine]
    training.deferred.close()
    assert [type(line) for line in training.sink.lines] == [SystemLine, StepLine, EpochEndLine]
    assert training.sink.closed


def test_a_line_of_the_machine_releases_a_step_that_is_ready(training):
    training.step("forward")
    training.end_step()
    training.device.reached = 2
    training.deferred.put(SystemLine(at_s=1.0))
    assert training.device_phases == [{"forward": 0.01}]


def test_the_end_line_comes_after_the_steps_that_are_held_back(training):
    training.step("forward")
    training.tracker.end()
    training.session.put_last(EndLine(at_s=1.0))
    training.session.close()
    assert [type(line) for line in training.sink.lines] == [StepLine, EpochEndLine, EndLine]


def test_lines_put_by_several_threads_are_released_once_and_in_order(training):
    training.step("forward")
    training.end_step()
    training.step("forward")
    training.end_step()
    training.device.reached = 100
    # The inner put stands for that of a second thread, while the first one is releasing lines.
    training.device.on_query = lambda: training.deferred.put(EpochEndLine(loader=0, epoch=0, at_s=0.0))
    training.deferred.put(EpochEndLine(loader=1, epoch=0, at_s=0.0))
    assert [line.batch for line in training.sink.lines if isinstance(line, StepLine)] == [0, 1]
    assert sorted(line.loader for line in training.sink.lines if isinstance(line, EpochEndLine)) == [0, 1]


def test_steps_go_on_without_device_times_if_too_many_wait(training):
    for _ in range(MAX_WAITING_LINES + 10):
        training.step("forward")
    assert training.device_phases == [{}] * 9
    assert len(training.device_phases) + len(training.deferred._waiting) == MAX_WAITING_LINES + 9


def test_events_are_reused(training):
    for _ in range(50):
        training.step("forward")
        training.device.reached = training.device.recorded
    assert training.device.events_made <= 4


def test_a_device_in_an_error_state_gives_no_times_and_no_error(training):
    training.step("forward")
    training.device.broken = True
    training.end_step()
    assert training.device_phases == [{}]
    assert not training.session.off


def test_no_event_is_recorded_on_a_stream_that_is_being_captured(training):
    training.step()
    training.phases.enter("forward")
    training.device.usable = False
    training.phase("backward")
    training.phases.leave()
    training.device.usable = True
    training.end_step()
    assert training.device.recorded == 1
    assert training.device_phases == [{}]


class FakeGraph:
    """Stands for torch.cuda.CUDAGraph."""

    device = None

    def capture_begin(self, pool=None):
        if pool == "bad":
            raise RuntimeError("no such pool")
        self.device.capturing = True

    def capture_end(self):
        self.device.capturing = False


def test_no_event_is_queried_while_a_graph_is_captured(training, monkeypatch):
    monkeypatch.setattr(FakeGraph, "device", training.device)
    patches, graph = Patches(), FakeGraph()
    watch_graph_captures(training.timer, patches, InUse(training.session), FakeGraph)
    training.step("forward")
    training.end_step()
    training.device.reached = 100
    graph.capture_begin()
    training.deferred.put(SystemLine(at_s=1.0))
    graph.capture_end()
    assert training.device_phases == []
    with pytest.raises(RuntimeError, match="no such pool"):
        graph.capture_begin("bad")
    training.deferred.put(SystemLine(at_s=2.0))
    assert training.device_phases == [{"forward": 0.01}]
    patches.undo()
    assert FakeGraph.capture_begin.__module__ == __name__
