"""How the GPU's time is measured, with events whose times the test sets."""

from penstock.core.stats import GpuTimes
from penstock.data.device.gpu_timing import READ_CHUNK, GpuTimer


class Event:
    """An event of a GPU whose clock the test owns: `time_s` is when the GPU passes it."""

    def __init__(self):
        self.time_s = None

    def record(self, stream):
        stream.append(self)

    def query(self):
        return self.time_s is not None

    def elapsed_time(self, other):
        return (other.time_s - self.time_s) * 1e3


def pass_events(stream, *times_s):
    """Let the GPU pass the recorded events at these times."""
    for event, time_s in zip(stream, times_s, strict=True):
        event.time_s = time_s
    stream.clear()


def test_a_gpu_that_waits_for_a_late_batch_is_stalled_and_the_copy_is_exposed():
    timer, stream, side = GpuTimer(Event), [], []
    timer.batch_requested(stream)
    begun, copied = timer.mark(side), timer.mark(side)
    timer.add_copy(begun, copied)
    timer.batch_received(stream, timer.mark(stream))
    pass_events(side, 1.5, 2.0)
    pass_events(stream, 1.0, 1.25, 2.0)
    assert timer.times() == GpuTimes(copying_s=0.5, exposed_s=0.75, stalled_s=1.0)


def test_a_gpu_that_still_has_work_is_not_stalled():
    timer, stream = GpuTimer(Event), []
    timer.batch_requested(stream)
    timer.batch_received(stream, timer.mark(stream))
    pass_events(stream, 7.0, 7.0, 7.0)
    assert timer.times() == GpuTimes()


def test_a_gpu_may_be_stalled_by_a_batch_whose_copy_is_not_exposed():
    timer, stream = GpuTimer(Event), []
    timer.batch_requested(stream)
    timer.batch_received(stream)
    pass_events(stream, 1.0, 1.25)
    assert timer.times() == GpuTimes(stalled_s=0.25)


def test_events_are_queried_when_many_are_unread_and_then_dropped():
    stream, queries = [], []

    class QueriedEvent(Event):
        def query(self):
            queries.append(self)
            return super().query()

    timer = GpuTimer(QueriedEvent)
    for second in range(READ_CHUNK - 1):
        timer.batch_requested(stream)
        timer.batch_received(stream)
        pass_events(stream, second, second + 0.5)
    assert queries == []
    timer.batch_requested(stream)
    timer.batch_received(stream)
    assert len(queries) == READ_CHUNK  # the end of each span, and that of the last, which is not passed
    queries.clear()
    assert timer.times() == GpuTimes(stalled_s=(READ_CHUNK - 1) / 2)
    assert len(queries) == 1


def test_events_that_the_gpu_has_not_passed_are_not_waited_for():
    timer, stream = GpuTimer(Event), []
    for _ in range(3):
        timer.batch_requested(stream)
        timer.batch_received(stream, timer.mark(stream))
    assert timer.times() == GpuTimes()
    pass_events(stream, *range(9))
    assert timer.times() == GpuTimes(exposed_s=3.0, stalled_s=6.0)
    assert timer.times() == GpuTimes(exposed_s=3.0, stalled_s=6.0)


def test_a_batch_that_was_not_requested_counts_as_exposed_only():
    timer, stream = GpuTimer(Event), []
    timer.batch_received(stream, timer.mark(stream))
    pass_events(stream, 0.0, 2.0)
    assert timer.times() == GpuTimes(exposed_s=2.0)


def test_time_in_which_two_batches_are_copied_counts_once():
    timer, side = GpuTimer(Event), []
    first, second = timer.mark(side), timer.mark(side)
    for begun in (first, second):
        timer.add_copy(begun, timer.mark(side))
    pass_events(side, 1.0, 2.0, 4.0, 7.0)
    assert timer.times() == GpuTimes(copying_s=6.0)
    timer.add_copy(timer.mark(side), timer.mark(side))
    pass_events(side, 9.0, 10.0)
    assert timer.times() == GpuTimes(copying_s=7.0)
