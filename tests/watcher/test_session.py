"""Steps, phases and epochs, on a clock that the test controls."""

import logging
import threading
from collections import deque

import pytest

from penstock.recording.format import EpochEndLine, EpochStartLine, EventLine, StepLine
from penstock.testing import FakeClock
from penstock.watcher.loader_views import LoaderState, WaitParts
from penstock.watcher.session import Session


class ListSink:
    """A sink that keeps its lines in a list."""

    def __init__(self):
        self.lines = []
        self.closed = 0

    def put(self, line):
        self.lines.append(line)

    def close(self):
        self.closed += 1

    def of(self, kind):
        return [line for line in self.lines if isinstance(line, kind)]


class BrokenSink(ListSink):
    """A sink that raises after a number of lines."""

    def __init__(self, max_lines=0):
        super().__init__()
        self.max_lines = max_lines

    def put(self, line):
        if len(self.lines) >= self.max_lines:
            raise OSError("disk full")
        super().put(line)

    def close(self):
        raise OSError("cannot close")


@pytest.fixture
def clock():
    return FakeClock(start=100.0)


@pytest.fixture
def sink():
    return ListSink()


@pytest.fixture
def session(clock, sink):
    return Session([sink], clock)


def next_batch(tracker, clock, wait_s=0.0, *known):
    """Request a batch and receive it after `wait_s`; `known` are the loader's state and the parts of the wait."""
    tracker.batch_requested()
    clock.advance(wait_s)
    tracker.batch_received([1, 2], *known)


def end_step(tracker):
    """Request the next batch, which ends the step, and pass the finished steps to the sinks."""
    tracker.batch_requested()
    tracker._session.flush()


def begin_epoch(session, loader=0, number=0):
    return session.begin_epoch(loader, number, len)


def test_a_step_is_the_wait_for_a_batch_and_the_time_until_the_next_request(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock, 2.0, LoaderState(ready=3, outstanding=8, worker=1), WaitParts(sampler_s=0.5))
    clock.advance(5.0)
    next_batch(tracker, clock, 1.0)
    clock.advance(4.0)
    tracker.end()
    first, second = sink.of(StepLine)
    assert (first.at_s, first.wait_s, first.step_s, first.batch) == (0.0, 2.0, 5.0, 0)
    assert (first.ready, first.outstanding, first.worker, first.samples) == (3, 8, 1, 2)
    assert first.phases == {"sampler": 0.5}
    assert (second.at_s, second.wait_s, second.step_s, second.batch, second.phases) == (7.0, 1.0, 4.0, 1, {})
    assert sink.of(EpochStartLine) == [EpochStartLine(loader=0, epoch=0, at_s=0.0)]
    assert sink.of(EpochEndLine) == [EpochEndLine(loader=0, epoch=0, at_s=12.0, how="done")]
    assert [type(line) for line in sink.lines] == [EpochStartLine, StepLine, StepLine, EpochEndLine]


def test_an_epoch_without_batches_has_no_steps(session, sink):
    tracker = begin_epoch(session)
    end_step(tracker)
    tracker.end()
    assert [type(line) for line in sink.lines] == [EpochStartLine, EpochEndLine]


def test_only_the_first_end_of_an_epoch_counts(session, sink):
    tracker = begin_epoch(session)
    tracker.end("left")
    tracker.end("done")
    assert [line.how for line in sink.of(EpochEndLine)] == ["left"]


# -- phases --------------------------------------------------------------------------------------------------------


def test_a_nested_phase_is_counted_by_its_path_and_in_the_outer_phase(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    for _ in range(2):
        with session.phase("forward"):
            clock.advance(1.0)
            with session.phase("attention"):
                clock.advance(2.0)
    with session.phase("attention"):
        clock.advance(4.0)
    end_step(tracker)
    assert sink.of(StepLine)[0].phases == {"forward/attention": 4.0, "forward": 6.0, "attention": 4.0}


def test_a_phase_that_raises_is_counted_and_the_script_gets_the_error(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)

    def forward():
        with session.phase("forward"):
            clock.advance(1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        forward()
    end_step(tracker)
    assert sink.of(StepLine)[0].phases == {"forward": 1.0}


def test_phases_of_other_threads_do_not_count(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)

    def run_phase():
        with session.phase("copy"):
            clock.advance(3.0)

    with session.phase("forward"):
        other = threading.Thread(target=run_phase)
        other.start()
        other.join()
    end_step(tracker)
    assert sink.of(StepLine)[0].phases == {"forward": 3.0}


def test_phases_before_the_first_batch_and_between_epochs_do_not_count(session, sink, clock):
    with session.phase("setup"):
        clock.advance(1.0)
    for number in range(2):
        tracker = begin_epoch(session, number=number)
        next_batch(tracker, clock)
        tracker.end()
        with session.phase("between"):
            clock.advance(1.0)
    assert [step.phases for step in sink.of(StepLine)] == [{}, {}]


def test_a_phase_around_the_training_loop_does_not_count_to_its_steps(session, sink, clock):
    for number in range(2):
        with session.phase("epoch"):
            tracker = begin_epoch(session, number=number)
            next_batch(tracker, clock)
            with session.phase("forward"):
                clock.advance(1.0)
            tracker.end()
    assert [step.phases for step in sink.of(StepLine)] == [{"forward": 1.0}, {"forward": 1.0}]


def test_a_phase_left_open_ends_with_its_step(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    session.enter("loss")
    session.enter("backward")
    clock.advance(2.0)
    next_batch(tracker, clock, 5.0)
    clock.advance(1.0)
    session.leave()  # too late: their step has ended
    session.leave()
    end_step(tracker)
    assert [step.phases for step in sink.of(StepLine)] == [{"loss/backward": 2.0, "loss": 2.0}, {}]


def test_a_phase_during_a_wait_does_not_count_to_the_step_before(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    end_step(tracker)
    with session.phase("gc"):
        clock.advance(1.0)
    tracker.batch_received([1])
    end_step(tracker)
    assert [step.phases for step in sink.of(StepLine)] == [{}, {}]


def test_leaving_a_phase_that_was_not_entered_does_nothing(session, sink, clock):
    session.leave()
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    session.leave()
    end_step(tracker)
    assert sink.of(StepLine)[0].phases == {}


# -- several epochs at once ----------------------------------------------------------------------------------------


def evaluate(session, clock, batches=2, number=0, how="done"):
    inner = begin_epoch(session, loader=1, number=number)
    for _ in range(batches):
        next_batch(inner, clock, 1.0)
        with session.phase("forward"):
            clock.advance(2.0)
    end_step(inner)
    inner.end(how)


@pytest.mark.parametrize("how", ["done", "left"])
def test_an_epoch_inside_a_step_of_another_loader_is_an_evaluation(session, sink, clock, how):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    with session.phase("forward"):
        clock.advance(1.0)
    evaluate(session, clock, how=how)
    with session.phase("optimizer"):
        clock.advance(0.5)
    next_batch(tracker, clock)
    tracker.end()
    outer = [step for step in sink.of(StepLine) if step.loader == 0]
    inner = [step for step in sink.of(StepLine) if step.loader == 1]
    assert [step.phases for step in outer] == [{"forward": 1.0, "evaluation": 6.0, "optimizer": 0.5}, {}]
    assert outer[0].step_s == 7.5
    assert [step.phases for step in inner] == [{"forward": 2.0}, {"forward": 2.0}]


def test_a_phase_around_an_evaluation_does_not_include_it(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    with session.phase("validate"):
        clock.advance(1.0)
        evaluate(session, clock)
        clock.advance(0.5)
    end_step(tracker)
    assert [step.phases for step in sink.of(StepLine) if step.loader == 0] == [{"evaluation": 6.0, "validate": 1.5}]


def test_two_evaluations_in_one_step_add_up(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    evaluate(session, clock, number=0)
    evaluate(session, clock, number=1)
    end_step(tracker)
    assert [step.phases for step in sink.of(StepLine) if step.loader == 0] == [{"evaluation": 12.0}]


def test_an_evaluation_after_the_epoch_belongs_to_no_step(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    tracker.end()
    evaluate(session, clock)
    assert all("evaluation" not in step.phases for step in sink.of(StepLine))


def test_two_loaders_in_a_zip_are_no_evaluation(session, sink, clock):
    left, right = begin_epoch(session, 0), begin_epoch(session, 1)
    for _ in range(3):  # zip(left, right)
        next_batch(left, clock, 1.0)
        next_batch(right, clock, 2.0)
        clock.advance(4.0)
    end_step(left)
    left.end()
    right.end("left")
    assert session._current is None
    evaluate(session, clock)
    steps = sink.of(StepLine)
    assert all("evaluation" not in step.phases for step in steps)
    assert [step.wait_s for step in steps if step.loader == 0] == [1.0, 1.0, 1.0]
    assert [step.wait_s for step in steps if step.loader == 1][:3] == [2.0, 2.0, 2.0]


def take_lone_batch(session, clock, loader=0, number=0):
    """Do what `next(iter(loader))` does: the epoch ends, and the step of its batch goes on."""
    tracker = begin_epoch(session, loader, number)
    next_batch(tracker, clock, 2.0)
    tracker.end("left")


def test_the_step_of_a_lone_batch_lasts_until_the_next_request(session, sink, clock):
    for number in range(2):
        take_lone_batch(session, clock, number=number)
        with session.phase("forward"):
            clock.advance(1.0)
    tracker = begin_epoch(session, 1)
    next_batch(tracker, clock)
    clock.advance(5.0)
    tracker.end()
    steps = [(step.loader, step.epoch, step.wait_s, step.step_s, step.phases) for step in sink.of(StepLine)]
    assert steps == [(0, 0, 2.0, 1.0, {"forward": 1.0}), (0, 1, 2.0, 1.0, {"forward": 1.0}), (1, 0, 0.0, 5.0, {})]


def test_the_step_of_a_lone_batch_ends_when_an_earlier_epoch_goes_on(session, sink, clock):
    tracker = begin_epoch(session)
    take_lone_batch(session, clock, loader=1)
    clock.advance(1.0)
    next_batch(tracker, clock)
    with session.phase("forward"):
        clock.advance(3.0)
    end_step(tracker)
    assert [(step.loader, step.step_s) for step in sink.of(StepLine)] == [(1, 1.0), (0, 3.0)]


def test_a_lone_batch_inside_a_step_of_another_loader_is_an_evaluation(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    take_lone_batch(session, clock, loader=1)
    with session.phase("forward"):
        clock.advance(1.0)
    end_step(tracker)
    outer = next(step for step in sink.of(StepLine) if step.loader == 0)
    assert outer.phases == {"evaluation": 2.0, "forward": 1.0}


# -- errors, and a session that is off -----------------------------------------------------------------------------


def test_an_error_turns_the_session_off_and_is_reported_once(clock, caplog):
    good, broken = ListSink(), BrokenSink(max_lines=1)
    session = Session([broken, good], clock)
    with session.guard():
        tracker = begin_epoch(session)
        next_batch(tracker, clock)
        end_step(tracker)
        pytest.fail("the broken sink did not raise")
    assert session.off
    assert [record.getMessage() for record in caplog.records] == ["watching stopped: OSError: disk full"]
    assert [event.detail["error"] for event in good.of(EventLine)] == ["OSError: disk full"]


def test_an_error_while_another_thread_flushes_does_not_reach_the_training(clock, sink):
    class Steps(deque):
        def __len__(self):
            return super().__len__() + 1  # a step that the other thread takes after this call

    session = Session([sink], clock)
    session._finished_steps = Steps()
    with session.guard():
        raise ValueError("an error of the watcher")
    assert [line.what for line in sink.of(EventLine)] == ["watcher_failed"]


def test_an_error_that_cannot_be_logged_does_not_reach_the_training(clock, sink, monkeypatch):
    class FullDiskHandler(logging.Handler):
        def emit(self, record):
            raise OSError("no space left")

    handler = FullDiskHandler()
    monkeypatch.setattr(logging.getLogger("penstock"), "handlers", [handler])
    session = Session([sink], clock)
    with session.guard():
        raise ValueError("an error of the watcher")
    assert session.off
    assert [line.what for line in sink.of(EventLine)] == ["watcher_failed"]


def test_a_guard_does_not_suppress_a_keyboard_interrupt(session):
    with pytest.raises(KeyboardInterrupt), session.guard():
        raise KeyboardInterrupt
    assert not session.off


def test_phases_do_not_read_the_clock_when_the_session_is_off(session, sink, clock, monkeypatch):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    session.off = True
    monkeypatch.setattr(clock, "now", lambda: pytest.fail("the clock was read"))
    with session.phase("forward"):
        pass
    assert tracker.phases == {}


def test_closing_reaches_every_sink_and_turns_the_session_off(clock):
    first, last = BrokenSink(), ListSink()
    session = Session([first, last], clock)
    session.close()
    assert session.off
    assert last.closed == 1


class FakeStackSampler:
    active = False

    def resume(self):
        self.active = True


def test_the_training_loop_is_sampled_only_outside_the_loader(session, clock):
    session.stack_sampler = sampler = FakeStackSampler()
    tracker = begin_epoch(session)
    for _ in range(2):
        next_batch(tracker, clock)
        assert sampler.active
        end_step(tracker)
        assert not sampler.active


def test_sampling_ends_with_the_epoch_and_resumes_after_an_evaluation(session, clock):
    session.stack_sampler = sampler = FakeStackSampler()
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    evaluate(session, clock, batches=1)
    assert sampler.active
    tracker.end()
    assert not sampler.active


def test_a_finished_step_reaches_the_sinks_before_the_next_line(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    tracker.batch_requested()
    assert sink.of(StepLine) == []  # only noted: another thread makes its line
    session.put(EventLine(what="gc", at_s=1.0))
    assert [type(line) for line in sink.lines] == [EpochStartLine, StepLine, EventLine]


def test_a_line_does_not_wait_while_another_thread_flushes(session, sink, clock):
    tracker = begin_epoch(session)
    next_batch(tracker, clock)
    tracker.batch_requested()
    with session._flush_lock:
        session.put(EventLine(what="gc", at_s=1.0))
    session.flush()
    assert [type(line) for line in sink.lines] == [EpochStartLine, EventLine, StepLine]
