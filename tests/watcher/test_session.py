"""Steps, phases and passes, on a clock that the test owns."""

import logging
import threading
from collections import deque

import pytest

from penstock.recording.format import EpochEndLine, EpochStartLine, EventLine, StepLine
from penstock.testing import FakeClock
from penstock.watcher.loader_views import LoaderState, WaitParts
from penstock.watcher.session import Session


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self):
        self.lines = []
        self.closed = 0

    def put(self, line):
        self.lines.append(line)

    def close(self):
        self.closed += 1

    def of(self, kind):
        return [line for line in self.lines if isinstance(line, kind)]


class Broken(Kept):
    """Takes so many lines, then no more."""

    def __init__(self, takes=0):
        super().__init__()
        self.takes = takes

    def put(self, line):
        if len(self.lines) >= self.takes:
            raise OSError("no room")
        super().put(line)

    def close(self):
        raise OSError("cannot close")


@pytest.fixture
def clock():
    return FakeClock(start=100.0)


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def session(clock, kept):
    return Session([kept], clock)


def ask(track, clock, wait_s=0.0, *got):
    """The loop asks, waits, has its batch."""
    track.asked()
    clock.advance(wait_s)
    track.got([1, 2], *got)


def over(track):
    """The loop asks again, and all that it has noted is told."""
    track.asked()
    track._session.settle()


def begin(session, loader=0, number=0):
    return session.begin(loader, number, len)


def test_a_step_is_the_wait_for_a_batch_and_the_time_until_the_next_ask(session, kept, clock):
    track = begin(session)
    ask(track, clock, 2.0, LoaderState(ready=3, outstanding=8, worker=1), WaitParts(sampler_s=0.5))
    clock.advance(5.0)
    ask(track, clock, 1.0)
    clock.advance(4.0)
    track.ended()
    first, second = kept.of(StepLine)
    assert (first.at_s, first.wait_s, first.step_s, first.batch) == (0.0, 2.0, 5.0, 0)
    assert (first.ready, first.outstanding, first.worker, first.samples) == (3, 8, 1, 2)
    assert first.phases == {"sampler": 0.5}
    assert (second.at_s, second.wait_s, second.step_s, second.batch, second.phases) == (7.0, 1.0, 4.0, 1, {})
    assert kept.of(EpochStartLine) == [EpochStartLine(loader=0, epoch=0, at_s=0.0)]
    assert kept.of(EpochEndLine) == [EpochEndLine(loader=0, epoch=0, at_s=12.0, how="done")]
    assert [type(line) for line in kept.lines] == [EpochStartLine, StepLine, StepLine, EpochEndLine]


def test_a_pass_without_batches_has_no_steps(session, kept):
    track = begin(session)
    over(track)
    track.ended()
    assert [type(line) for line in kept.lines] == [EpochStartLine, EpochEndLine]


def test_a_pass_ends_once(session, kept):
    track = begin(session)
    track.ended("left")
    track.ended("done")
    assert [line.how for line in kept.of(EpochEndLine)] == ["left"]


# -- phases ----------------------------------------------------------------------------------------------------


def test_phases_lie_in_one_another_and_are_counted_in_both(session, kept, clock):
    track = begin(session)
    ask(track, clock)
    for _ in range(2):
        with session.phase("forward"):
            clock.advance(1.0)
            with session.phase("attention"):
                clock.advance(2.0)
    with session.phase("attention"):
        clock.advance(4.0)
    over(track)
    assert kept.of(StepLine)[0].phases == {"forward/attention": 4.0, "forward": 6.0, "attention": 4.0}


def test_a_phase_that_raises_is_counted_and_its_error_is_the_scripts(session, kept, clock):
    track = begin(session)
    ask(track, clock)

    def forward():
        with session.phase("forward"):
            clock.advance(1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        forward()
    over(track)
    assert kept.of(StepLine)[0].phases == {"forward": 1.0}


def test_phases_of_other_threads_are_not_the_steps(session, kept, clock):
    track = begin(session)
    ask(track, clock)

    def aside():
        with session.phase("copy"):
            clock.advance(3.0)

    with session.phase("forward"):
        other = threading.Thread(target=aside)
        other.start()
        other.join()
    over(track)
    assert kept.of(StepLine)[0].phases == {"forward": 3.0}


def test_phases_before_the_first_batch_and_between_passes_are_nobodys(session, kept, clock):
    with session.phase("setup"):
        clock.advance(1.0)
    for number in range(2):
        track = begin(session, number=number)
        ask(track, clock)
        track.ended()
        with session.phase("between"):
            clock.advance(1.0)
    assert [step.phases for step in kept.of(StepLine)] == [{}, {}]


def test_a_phase_around_the_loop_is_no_part_of_its_steps(session, kept, clock):
    for number in range(2):
        with session.phase("epoch"):
            track = begin(session, number=number)
            ask(track, clock)
            with session.phase("forward"):
                clock.advance(1.0)
            track.ended()
    assert [step.phases for step in kept.of(StepLine)] == [{"forward": 1.0}, {"forward": 1.0}]


def test_a_phase_left_open_ends_with_its_step(session, kept, clock):
    track = begin(session)
    ask(track, clock)
    session.enter("loss")
    session.enter("backward")
    clock.advance(2.0)
    ask(track, clock, 5.0)
    clock.advance(1.0)
    session.leave()  # late: theirs is over
    session.leave()
    over(track)
    assert [step.phases for step in kept.of(StepLine)] == [{"loss/backward": 2.0, "loss": 2.0}, {}]


def test_what_happens_while_the_loop_waits_does_not_change_the_step_before(session, kept, clock):
    track = begin(session)
    ask(track, clock)
    over(track)
    with session.phase("gc"):
        clock.advance(1.0)
    track.got([1])
    over(track)
    assert [step.phases for step in kept.of(StepLine)] == [{}, {}]


def test_leaving_what_was_not_entered_does_nothing(session, kept, clock):
    session.leave()
    track = begin(session)
    ask(track, clock)
    session.leave()
    over(track)
    assert kept.of(StepLine)[0].phases == {}


# -- several passes at once ------------------------------------------------------------------------------------


def evaluate(session, clock, batches=2, number=0, how="done"):
    inner = begin(session, loader=1, number=number)
    for _ in range(batches):
        ask(inner, clock, 1.0)
        with session.phase("forward"):
            clock.advance(2.0)
    over(inner)
    inner.ended(how)


@pytest.mark.parametrize("how", ["done", "left"])
def test_a_pass_inside_a_step_is_an_evaluation_of_that_step(session, kept, clock, how):
    track = begin(session)
    ask(track, clock)
    with session.phase("forward"):
        clock.advance(1.0)
    evaluate(session, clock, how=how)
    with session.phase("optimizer"):
        clock.advance(0.5)
    ask(track, clock)
    track.ended()
    outer = [step for step in kept.of(StepLine) if step.loader == 0]
    inner = [step for step in kept.of(StepLine) if step.loader == 1]
    assert [step.phases for step in outer] == [{"forward": 1.0, "evaluation": 6.0, "optimizer": 0.5}, {}]
    assert outer[0].step_s == 7.5
    assert [step.phases for step in inner] == [{"forward": 2.0}, {"forward": 2.0}]


def test_a_phase_around_an_evaluation_does_not_count_it(session, kept, clock):
    track = begin(session)
    ask(track, clock)
    with session.phase("validate"):
        clock.advance(1.0)
        evaluate(session, clock)
        clock.advance(0.5)
    over(track)
    assert [step.phases for step in kept.of(StepLine) if step.loader == 0] == [{"evaluation": 6.0, "validate": 1.5}]


def test_two_evaluations_in_one_step_add_up(session, kept, clock):
    track = begin(session)
    ask(track, clock)
    evaluate(session, clock, number=0)
    evaluate(session, clock, number=1)
    over(track)
    assert [step.phases for step in kept.of(StepLine) if step.loader == 0] == [{"evaluation": 12.0}]


def test_an_evaluation_after_the_pass_belongs_to_no_step(session, kept, clock):
    track = begin(session)
    ask(track, clock)
    track.ended()
    evaluate(session, clock)
    assert all("evaluation" not in step.phases for step in kept.of(StepLine))


def test_two_loaders_side_by_side_are_no_evaluation(session, kept, clock):
    left, right = begin(session, 0), begin(session, 1)
    for _ in range(3):  # zip(left, right)
        ask(left, clock, 1.0)
        ask(right, clock, 2.0)
        clock.advance(4.0)
    over(left)
    left.ended()
    right.ended("left")
    assert session._current is None
    evaluate(session, clock)
    steps = kept.of(StepLine)
    assert all("evaluation" not in step.phases for step in steps)
    assert [step.wait_s for step in steps if step.loader == 0] == [1.0, 1.0, 1.0]
    assert [step.wait_s for step in steps if step.loader == 1][:3] == [2.0, 2.0, 2.0]


def lone(session, clock, loader=0, number=0):
    """`next(iter(loader))`: the pass has gone, its batch is there."""
    track = begin(session, loader, number)
    ask(track, clock, 2.0)
    track.ended("left")


def test_a_lone_batch_is_worked_on_until_the_loop_asks_again(session, kept, clock):
    for number in range(2):
        lone(session, clock, number=number)
        with session.phase("forward"):
            clock.advance(1.0)
    track = begin(session, 1)
    ask(track, clock)
    clock.advance(5.0)
    track.ended()
    steps = [(step.loader, step.epoch, step.wait_s, step.step_s, step.phases) for step in kept.of(StepLine)]
    assert steps == [(0, 0, 2.0, 1.0, {"forward": 1.0}), (0, 1, 2.0, 1.0, {"forward": 1.0}), (1, 0, 0.0, 5.0, {})]


def test_a_lone_batch_ends_where_a_pass_that_was_begun_before_goes_on(session, kept, clock):
    track = begin(session)
    lone(session, clock, loader=1)
    clock.advance(1.0)
    ask(track, clock)
    with session.phase("forward"):
        clock.advance(3.0)
    over(track)
    assert [(step.loader, step.step_s) for step in kept.of(StepLine)] == [(1, 1.0), (0, 3.0)]


def test_a_lone_batch_inside_a_step_of_another_loader_leaves_that_step_its_phases(session, kept, clock):
    track = begin(session)
    ask(track, clock)
    lone(session, clock, loader=1)
    with session.phase("forward"):
        clock.advance(1.0)
    over(track)
    outer = next(step for step in kept.of(StepLine) if step.loader == 0)
    assert outer.phases == {"evaluation": 2.0, "forward": 1.0}


# -- failures, and being off -----------------------------------------------------------------------------------


def test_an_error_turns_the_watching_off_and_is_told_once(clock, caplog):
    good, broken = Kept(), Broken(takes=1)
    session = Session([broken, good], clock)
    with session.guard():
        track = begin(session)
        ask(track, clock)
        over(track)
        pytest.fail("the guard lets nothing of this through")
    assert session.off
    assert [record.getMessage() for record in caplog.records] == ["watching stopped: OSError: no room"]
    assert [event.detail["error"] for event in good.of(EventLine)] == ["OSError: no room"]


def test_an_error_while_another_thread_tells_the_steps_is_still_no_error_of_the_training(clock, kept):
    class Told(deque):
        def __len__(self):
            return super().__len__() + 1  # the one that the other thread has just taken

    session = Session([kept], clock)
    session._noted = Told()
    with session.guard():
        raise ValueError("ours")
    assert [line.what for line in kept.of(EventLine)] == ["watcher_failed"]


def test_a_log_that_fails_does_not_make_our_error_the_trainings(clock, kept, monkeypatch):
    class Full(logging.Handler):
        def emit(self, record):
            raise OSError("no space left")

    handler = Full()
    monkeypatch.setattr(logging.getLogger("penstock"), "handlers", [handler])
    session = Session([kept], clock)
    with session.guard():
        raise ValueError("ours")
    assert session.off
    assert [line.what for line in kept.of(EventLine)] == ["watcher_failed"]


def test_a_guard_lets_the_users_own_interrupts_through(session):
    with pytest.raises(KeyboardInterrupt), session.guard():
        raise KeyboardInterrupt
    assert not session.off


def test_phases_cost_no_look_at_the_clock_when_off(session, kept, clock, monkeypatch):
    track = begin(session)
    ask(track, clock)
    session.off = True
    monkeypatch.setattr(clock, "now", lambda: pytest.fail("looked at the clock"))
    with session.phase("forward"):
        pass
    assert track.phases == {}


def test_closing_reaches_every_sink_and_ends_the_watching(clock):
    first, last = Broken(), Kept()
    session = Session([first, last], clock)
    session.close()
    assert session.off
    assert last.closed == 1


class Looker:
    active = False

    def resume(self):
        self.active = True


def test_the_loops_thread_is_looked_at_only_outside_the_loader(session, clock):
    session.looker = looker = Looker()
    track = begin(session)
    for _ in range(2):
        ask(track, clock)
        assert looker.active
        over(track)
        assert not looker.active


def test_after_a_pass_nobody_is_looked_at_and_after_an_evaluation_the_step_is_again(session, clock):
    session.looker = looker = Looker()
    track = begin(session)
    ask(track, clock)
    evaluate(session, clock, batches=1)
    assert looker.active
    track.ended()
    assert not looker.active


def test_a_step_is_told_before_whatever_comes_after_it(session, kept, clock):
    track = begin(session)
    ask(track, clock)
    track.asked()
    assert kept.of(StepLine) == []  # noted only: making its line is another thread's work
    session.put(EventLine(what="gc", at_s=1.0))
    assert [type(line) for line in kept.lines] == [EpochStartLine, StepLine, EventLine]


def test_whoever_comes_by_while_steps_are_being_told_does_not_wait(session, kept, clock):
    track = begin(session)
    ask(track, clock)
    track.asked()
    with session._settling:
        session.put(EventLine(what="gc", at_s=1.0))
    session.settle()
    assert [type(line) for line in kept.lines] == [EpochStartLine, EventLine, StepLine]
