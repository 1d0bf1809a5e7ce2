"""Reports about a loader, measured by a clock of the test."""

from penstock.core.hops import Hop
from penstock.core.stats import EngineStats, LoaderStats
from penstock.report.text import status_line
from penstock.runtime.progress import LINE_S, DeliveryTimer, StatusTicker
from penstock.testing import FakeClock

ENGINE = EngineStats(
    read=Hop("read", 1.0, 0.0, 9.0),
    decode=Hop("decode", 9.0, 0.0, 1.0),
    waited_s=4.0,
    decoding_s=8.5,
    reads=10,
    bytes_read=1000,
    rereads=0,
    tasks=100,
    samples=500,
    batches=50,
    worker_deaths=0,
    readers=4,
    workers=2,
    lookahead=4,
    task_s=0.004,
    arena_used_bytes=0,
    ready_batches=1,
    changes=(),
)


def stats(timer):
    deliver, step = timer.hops()
    return LoaderStats(3, 480, 1000, timer.samples, timer.batches, 0, deliver, step, ENGINE)


def run_epoch(timer, clock, batches, wait_s, deliver_s, step_s):
    timer.begin()
    for _ in range(batches):
        clock.sleep(wait_s)
        timer.waited()
        clock.sleep(deliver_s)
        timer.delivered(8)
        clock.sleep(step_s)
        timer.returned()


def test_every_moment_of_an_epoch_is_waiting_delivering_or_stepping():
    clock = FakeClock()
    timer = DeliveryTimer(clock)
    run_epoch(timer, clock, batches=4, wait_s=1.0, deliver_s=0.5, step_s=2.0)
    assert timer.hops() == (Hop("deliver", 2.0, 4.0, 8.0), Hop("step", 8.0, 6.0))
    assert (timer.samples, timer.batches) == (32, 4)


def test_the_time_between_two_epochs_is_not_counted():
    clock = FakeClock()
    timer = DeliveryTimer(clock)
    run_epoch(timer, clock, 1, 1.0, 0.0, 1.0)
    clock.sleep(100.0)
    run_epoch(timer, clock, 1, 1.0, 0.0, 1.0)
    assert timer.hops()[1] == Hop("step", 2.0, 2.0)


def test_the_bottleneck_is_the_hop_that_waited_least():
    clock = FakeClock()
    timer = DeliveryTimer(clock)
    run_epoch(timer, clock, 4, wait_s=1.0, deliver_s=0.0, step_s=1.0)
    assert stats(timer).bottleneck == "decode"
    run_epoch(timer, clock, 100, wait_s=0.0, deliver_s=0.0, step_s=1.0)
    assert stats(timer).bottleneck == "step"


def test_the_rate_covers_the_whole_time_of_the_epochs():
    clock = FakeClock()
    timer = DeliveryTimer(clock)
    assert stats(timer).samples_per_s == 0.0
    run_epoch(timer, clock, 4, wait_s=1.0, deliver_s=0.5, step_s=2.5)
    assert stats(timer).samples_per_s == 2.0


def test_a_status_line_reports_what_happened_since_the_last_one():
    clock = FakeClock()
    timer = DeliveryTimer(clock)
    run_epoch(timer, clock, 10, wait_s=1.0, deliver_s=0.0, step_s=0.0)
    before = stats(timer)
    assert status_line(before, None) == (
        "epoch 3, 480 of 1000 samples, 8/s, training waited 100%, bottleneck decode | "
        "read 10%, decode 90%, deliver 0% | 2 workers, 4 readers, 4 ahead"
    )
    run_epoch(timer, clock, 10, wait_s=0.0, deliver_s=0.0, step_s=2.0)
    assert "4/s, training waited 0%, bottleneck step" in status_line(stats(timer), before)


def test_a_line_is_due_every_few_seconds_and_is_printed_on_stderr(capsys):
    clock = FakeClock()
    ticker = StatusTicker(clock)
    assert not ticker.due
    clock.sleep(LINE_S)
    assert ticker.due
    ticker.show(stats(DeliveryTimer(clock)))
    assert not ticker.due
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("epoch 3, 480 of 1000 samples")
    assert err.count("\n") == 1
