import pytest

from penstock.recording.format import EndLine, EpochEndLine, StepLine, SystemLine
from penstock.testing import FakeClock
from penstock.watcher.device_time import HELD_MAX, DeferredSteps, DeviceTimer
from penstock.watcher.hooks.device import watch_graph_captures
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.session import Session


class Device:
    """Comes by its events in the order they were recorded, when told to."""

    def __init__(self):
        self.recorded = 0
        self.done = 0
        self.made = 0
        self.broken = False
        self.usable = True
        self.capturing = False
        self.asked = None

    def event(self):
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device.recorded += 1
        self.at = self.device.recorded

    def query(self):
        asked, self.device.asked = self.device.asked, None
        if asked is not None:
            asked()
        if self.device.capturing:
            pytest.fail("this would end the capture")
        if self.device.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.at <= self.device.done

    def elapsed_time(self, end_event):
        return 10.0 * (end_event.at - self.at)  # ms


class Lines:
    def __init__(self):
        self.all = []
        self.closed = False

    def put(self, line):
        self.all.append(line)

    def close(self):
        self.closed = True


class Rig:
    def __init__(self):
        self.device, self.lines = Device(), Lines()
        self.session = Session([], FakeClock())
        self.timer = DeviceTimer(self.session, self.device.event, lambda: self.device.usable)
        self.held = DeferredSteps(self.lines, self.timer)
        self.session._sinks.append(self.held)
        self.phases = PhaseHooks(self.session, self.timer)
        self.track = self.session.begin(0, 0, lambda batch: 1)
        self.lines.all.clear()

    def over(self):
        self.track.asked()
        self.session.settle()

    def step(self, *names):
        self.over()
        self.track.got(None)
        for name in names:
            self.phase(name)

    def phase(self, name):
        self.phases.enter(name)
        self.phases.leave()

    @property
    def device_phases(self):
        return [line.device_phases for line in self.lines.all if isinstance(line, StepLine)]


@pytest.fixture
def rig():
    return Rig()


def test_a_step_waits_for_its_events_and_is_never_waited_for(rig):
    rig.step("forward", "backward")
    rig.over()
    assert rig.lines.all == []
    rig.device.done = 3  # the end of backward has not come
    rig.step("forward")
    rig.over()
    assert rig.lines.all == []
    rig.device.done = 4
    rig.step("forward")
    rig.over()
    assert rig.device_phases == [{"forward": 0.01, "backward": 0.01}]


def test_the_hosts_own_phases_take_no_events(rig):
    rig.step("gc", "sync", "log")
    rig.over()
    assert rig.device.recorded == 0
    assert rig.device_phases == [{}]


def test_a_phase_inside_another_is_counted_in_both(rig):
    rig.step()
    rig.phases.enter("optimizer")
    rig.phase("forward")
    rig.phase("forward")
    rig.phases.leave()
    rig.device.done = 100
    rig.over()
    assert rig.device_phases == [{"optimizer/forward": 0.02, "optimizer": pytest.approx(0.05)}]


def test_a_phase_that_a_new_batch_finds_open_is_forgotten(rig):
    rig.step()
    rig.phases.enter("forward")
    rig.step("sync", "backward")
    rig.device.done = 100
    rig.track.ended()
    assert rig.device_phases == [{}, {"backward": 0.01}]


def test_lines_keep_their_order_and_those_of_the_machine_go_through(rig):
    rig.step("forward")
    rig.track.ended()
    rig.held.put(SystemLine(at_s=1.0))
    assert [type(line) for line in rig.lines.all] == [SystemLine]
    rig.held.close()
    assert [type(line) for line in rig.lines.all] == [SystemLine, StepLine, EpochEndLine]
    assert rig.lines.closed


def test_a_long_step_is_not_kept_until_the_next_is_over(rig):
    rig.step("forward")
    rig.over()
    rig.device.done = 2
    rig.held.put(SystemLine(at_s=1.0))
    assert rig.device_phases == [{"forward": 0.01}]


def test_the_end_comes_last(rig):
    rig.step("forward")
    rig.track.ended()
    rig.session.put_last(EndLine(at_s=1.0))
    rig.session.close()
    assert [type(line) for line in rig.lines.all] == [StepLine, EpochEndLine, EndLine]


def test_lines_that_several_threads_bring_are_released_once_each(rig):
    rig.step("forward")
    rig.over()
    rig.step("forward")
    rig.over()
    rig.device.done = 100
    rig.device.asked = lambda: rig.held.put(EpochEndLine(loader=0, epoch=0, at_s=0.0))  # while the other thread asks
    rig.held.put(EpochEndLine(loader=1, epoch=0, at_s=0.0))
    assert [line.batch for line in rig.lines.all if isinstance(line, StepLine)] == [0, 1]
    assert sorted(line.loader for line in rig.lines.all if isinstance(line, EpochEndLine)) == [0, 1]


def test_a_device_far_behind_costs_its_times_not_the_steps(rig):
    for _ in range(HELD_MAX + 10):
        rig.step("forward")
    assert rig.device_phases == [{}] * 9
    assert len(rig.device_phases) + len(rig.held._waiting) == HELD_MAX + 9


def test_events_are_used_again(rig):
    for _ in range(50):
        rig.step("forward")
        rig.device.done = rig.device.recorded
    assert rig.device.made <= 4


def test_a_device_in_an_error_state_gives_no_times_and_no_error(rig):
    rig.step("forward")
    rig.device.broken = True
    rig.over()
    assert rig.device_phases == [{}]
    assert not rig.session.off


def test_a_stream_that_is_being_captured_gets_no_events(rig):
    rig.step()
    rig.phases.enter("forward")
    rig.device.usable = False
    rig.phase("backward")
    rig.phases.leave()
    rig.device.usable = True
    rig.over()
    assert rig.device.recorded == 1
    assert rig.device_phases == [{}]


class Graph:
    """As torch.cuda.CUDAGraph is."""

    device = None

    def capture_begin(self, pool=None):
        if pool == "bad":
            raise RuntimeError("no such pool")
        self.device.capturing = True

    def capture_end(self):
        self.device.capturing = False


def test_no_event_is_asked_for_while_a_graph_is_captured(rig, monkeypatch):
    monkeypatch.setattr(Graph, "device", rig.device)
    patches, graph = Patches(), Graph()
    watch_graph_captures(rig.timer, patches, Graph)
    rig.step("forward")
    rig.over()
    rig.device.done = 100
    graph.capture_begin()
    rig.held.put(SystemLine(at_s=1.0))
    graph.capture_end()
    assert rig.device_phases == []
    with pytest.raises(RuntimeError, match="no such pool"):
        graph.capture_begin("bad")
    rig.held.put(SystemLine(at_s=2.0))
    assert rig.device_phases == [{"forward": 0.01}]
    patches.undo()
    assert Graph.capture_begin.__module__ == __name__
