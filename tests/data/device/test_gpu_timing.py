"""Where the card's time goes, with events that we set off ourselves."""

from penstock.core.stats import GpuTimes
from penstock.data.device.gpu_timing import READ_CHUNK, GpuTimer


class Event:
    """Of a card whose clock we own; `at` is when it comes by."""

    def __init__(self):
        self.at = None

    def record(self, stream):
        stream.append(self)

    def query(self):
        return self.at is not None

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


def passed(stream, *times):
    """The card comes by at what is recorded, at these times."""
    for event, at in zip(stream, times, strict=True):
        event.at = at
    stream.clear()


def test_a_card_that_waits_for_a_late_batch_is_stalled_and_its_copy_exposed():
    clock, stream, side = GpuTimer(Event), [], []
    clock.batch_requested(stream)
    begun, copied = clock.mark(side), clock.mark(side)
    clock.add_copy(begun, copied)
    clock.batch_received(stream, clock.mark(stream))
    passed(side, 1.5, 2.0)
    passed(stream, 1.0, 1.25, 2.0)
    assert clock.times() == GpuTimes(copying_s=0.5, exposed_s=0.75, stalled_s=1.0)


def test_a_card_that_still_has_work_is_not_stalled():
    clock, stream = GpuTimer(Event), []
    clock.batch_requested(stream)
    clock.batch_received(stream, clock.mark(stream))
    passed(stream, 7.0, 7.0, 7.0)
    assert clock.times() == GpuTimes()


def test_nothing_is_exposed_of_a_batch_that_had_arrived_but_the_card_may_be_stalled():
    clock, stream = GpuTimer(Event), []
    clock.batch_requested(stream)
    clock.batch_received(stream)
    passed(stream, 1.0, 1.25)
    assert clock.times() == GpuTimes(stalled_s=0.25)


def test_events_are_looked_at_when_many_wait_and_then_forgotten():
    stream, looks = [], []

    class Seen(Event):
        def query(self):
            looks.append(self)
            return super().query()

    clock = GpuTimer(Seen)
    for at in range(READ_CHUNK - 1):
        clock.batch_requested(stream)
        clock.batch_received(stream)
        passed(stream, at, at + 0.5)
    assert looks == []
    clock.batch_requested(stream)
    clock.batch_received(stream)
    assert len(looks) == READ_CHUNK  # at the end of each span, and at the last, which is not over
    looks.clear()
    assert clock.times() == GpuTimes(stalled_s=(READ_CHUNK - 1) / 2)
    assert len(looks) == 1


def test_what_the_card_has_not_come_by_is_not_waited_for():
    clock, stream = GpuTimer(Event), []
    for _ in range(3):
        clock.batch_requested(stream)
        clock.batch_received(stream, clock.mark(stream))
    assert clock.times() == GpuTimes()
    passed(stream, *range(9))
    assert clock.times() == GpuTimes(exposed_s=3.0, stalled_s=6.0)
    assert clock.times() == GpuTimes(exposed_s=3.0, stalled_s=6.0)


def test_the_first_batch_of_all_has_nobody_who_asked():
    clock, stream = GpuTimer(Event), []
    clock.batch_received(stream, clock.mark(stream))
    passed(stream, 0.0, 2.0)
    assert clock.times() == GpuTimes(exposed_s=2.0)


def test_time_in_which_two_batches_are_on_their_way_counts_once():
    clock, side = GpuTimer(Event), []
    first, second = clock.mark(side), clock.mark(side)
    for begun in (first, second):
        clock.add_copy(begun, clock.mark(side))
    passed(side, 1.0, 2.0, 4.0, 7.0)
    assert clock.times() == GpuTimes(copying_s=6.0)
    clock.add_copy(clock.mark(side), clock.mark(side))
    passed(side, 9.0, 10.0)
    assert clock.times() == GpuTimes(copying_s=7.0)
