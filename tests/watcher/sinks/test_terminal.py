import io
import logging

import pytest
from rich.console import Console
from rich.progress import Progress
from tqdm import tqdm

from penstock.recording.format import LoaderLine, LoaderSetting, StepLine
from penstock.watcher.sinks.terminal import LiveLines, print_above_bars


class Run:
    """A run whose times the test sets, and the lines that were printed."""

    def __init__(self, workers=32, prefetch=12, **settings):
        self.printed = []
        self.live = LiveLines(self.printed.append, **settings)
        self.full = workers * prefetch
        self.at_s = 0.0
        self.batch = 0
        self.add_loader(workers)

    def add_loader(self, workers, loader=0, name=""):
        setting = LoaderSetting(requested=workers, in_force=workers)
        self.live.put(LoaderLine(loader=loader, name=name, settings={"num_workers": setting}))

    def step(self, wait_s=0.0004, step_s=0.16, loader=0, **known):
        known = {"samples": 24, "outstanding": self.full, "ready": self.full, "worker": 0, **known}
        self.live.put(
            StepLine(loader=loader, batch=self.batch, at_s=self.at_s, wait_s=wait_s, step_s=step_s, **known),
        )
        self.at_s += wait_s + step_s
        self.batch += 1

    def steps(self, count, **known):
        for _ in range(count):
            self.step(**known)

    def lines(self, start=""):
        self.live.close()
        return [line for line in self.printed if line.startswith(start)]


def test_one_line_per_window_gives_the_distribution_of_waits():
    run = Run()
    run.steps(31)
    run.step(wait_s=10.0, worker=6)
    run.steps(31)
    run.step(wait_s=22.409, worker=6)
    assert run.lines("[DATA]") == [
        "[DATA] last 64 batches: wait mean 507 ms, p50 0.4, p99 14591, max 22409, std 3025, 2 slow"
        " · step 160 ms · 36.0 samples/s"
    ]


def test_the_line_of_a_slow_batch_names_the_awaited_worker_and_the_ready_batches():
    run = Run()
    run.steps(38)
    run.step(wait_s=20.69, ready=372, worker=6)
    assert run.lines("[SLOW") == [
        "[SLOW BATCH #38] 20.69s waiting on worker 6 · ready 372/384 · perhaps lagging worker"
    ]


def test_the_guess_is_certain_from_the_third_stall_on_the_same_worker():
    run = Run()
    for _ in range(16):
        run.steps(31)
        run.step(wait_s=20.0, ready=372, worker=31)
    guesses = [line.rpartition(" · ")[2] for line in run.lines("[SLOW")]
    assert guesses == ["perhaps lagging worker"] * 2 + ["lagging worker"] * 14


def test_all_other_batches_ready_and_another_worker_each_time_means_heavy_batches():
    run = Run()
    for worker in (3, 17, 8, 29):
        run.steps(31)
        run.step(wait_s=20.0, ready=372, worker=worker)
    assert run.lines("[SLOW")[-1].endswith(" · heavy batch")


def test_nothing_ready_means_all_workers_are_behind():
    run = Run()
    for _ in range(2):
        run.steps(31)
        run.step(wait_s=20.0, ready=0, worker=31)
    last = run.lines("[SLOW")[-1]
    assert last == "[SLOW BATCH #63] 20.00s waiting on worker 31 · ready 0/384 · perhaps all workers behind"


def test_stalls_that_disagree_leave_the_guess_open():
    run = Run()
    for ready in (0, 0, 372):
        run.steps(31)
        run.step(wait_s=20.0, ready=ready, worker=31)
    assert run.lines("[SLOW")[-1].endswith(" · perhaps lagging worker")


@pytest.mark.parametrize(
    "known",
    [{"ready": 150}, {"ready": None}, {"outstanding": None}, {"worker": None}],
    ids=["half ready", "ready unknown", "outstanding unknown", "worker unknown"],
)
def test_no_cause_is_guessed_from_unknown_or_unclear_counts(known):
    run = Run()
    run.steps(38)
    run.step(wait_s=20.0, **known)
    (line,) = run.lines("[SLOW")
    assert not any(word in line for word in ("behind", "lagging", "heavy"))


def test_without_workers_no_worker_is_named():
    run = Run(workers=0)
    run.steps(38, worker=-1, ready=None, outstanding=None)
    run.step(wait_s=0.31, worker=-1, ready=None, outstanding=None)
    assert run.lines("[SLOW") == ["[SLOW BATCH #38] 310ms waiting"]


def test_the_line_of_a_slow_first_batch_names_its_epoch():
    run = Run()
    run.steps(40)
    run.batch = 0
    run.step(wait_s=8.0, ready=0, worker=0, epoch=1)
    assert run.lines("[SLOW") == ["[SLOW BATCH #0] 8.00s waiting on worker 0 · first of epoch 1 · ready 0/384"]


def test_slow_batches_within_a_second_are_only_counted():
    run = Run(workers=0)
    run.steps(40, step_s=0.01)
    for _ in range(4):
        run.step(wait_s=0.1, step_s=0.01, worker=None)
    run.steps(9, step_s=0.1)
    run.step(wait_s=0.1, step_s=0.01, worker=None)
    assert run.lines("[SLOW") == ["[SLOW BATCH #40] 100ms waiting", "[SLOW BATCH #53] 100ms waiting (+3 more)"]


def test_windows_of_short_steps_are_printed_once_a_second_and_the_postfix_is_that_of_the_last_window():
    run = Run(workers=0)
    run.steps(19 * 50, wait_s=0.001, step_s=0.002)  # 19 windows of 0.15 s each
    run.steps(50, wait_s=0.001, step_s=0.002, loader=1)
    run.steps(50, wait_s=0.001, step_s=0.002, phases={"forward": 0.0015})
    run.steps(10, wait_s=0.001, step_s=0.002, phases={"forward": 0.0015})
    assert len(run.lines("[DATA]")) == 3 + 1 + 1  # after 0.15, 1.2 and 2.25 s; the other loader's; the last one
    assert run.live.postfix() == {"data": "1.0", "fwd": "1.5"}
    assert len(run.lines("[DATA] last 10 batches")) == 1


def test_with_several_loaders_each_line_names_its_loader_and_control_characters_are_escaped():
    run = Run(workers=0)
    run.add_loader(0, loader=0, name="train")
    run.add_loader(0, loader=1, name="val\x1b[2J")
    run.steps(50, loader=1, worker=None)
    run.step(wait_s=3.0, loader=1, worker=None)
    window, slow = run.lines()[:2]
    assert window.startswith("[DATA] last 50 batches of val\\x1b[2J: wait mean")
    assert slow == "[SLOW BATCH #50] 3.00s waiting · val\\x1b[2J"


def test_the_window_of_a_short_run_is_printed_at_the_end():
    run = Run(workers=4)
    run.steps(11)
    assert [line.partition(":")[0] for line in run.lines()] == ["[DATA] last 8 batches"]


def test_only_rank_0_prints_but_every_rank_has_a_postfix():
    run = Run(rank=1)
    run.steps(64)
    assert run.lines() == []
    assert run.live.postfix() == {"data": "0.4"}


@pytest.mark.parametrize(("rank", "printed"), [("3", 0), ("0", 1)])
def test_the_default_rank_is_that_of_the_launcher(monkeypatch, rank, printed):
    monkeypatch.setenv("RANK", rank)
    run = Run()
    run.steps(64)
    assert len(run.lines()) == printed


def test_the_postfix_has_the_outermost_phases_in_the_order_of_the_step():
    run = Run(workers=0)
    phases = {"h2d": 0.001, "optimizer": 0.0021, "backward": 0.119, "forward": 0.025, "forward/attention": 0.02}
    phases["sampler"] = 0.001
    assert run.live.postfix() == {}
    run.steps(50, wait_s=0.576, phases=phases)
    run.live.close()
    assert list(run.live.postfix().items()) == [
        ("data", "576"), ("fwd", "25.0"), ("bwd", "119"), ("opt", "2.1"), ("h2d", "1.0"),
    ]  # fmt: skip


def test_the_postfix_is_that_of_the_loader_in_use():
    run = Run(workers=0)
    run.steps(50, wait_s=0.3)
    run.steps(50, loader=1, wait_s=0.7)
    run.step(wait_s=0.3)
    run.live.close()
    assert run.live.postfix() == {"data": "300"}


def test_forward_and_backward_called_by_the_optimizer_are_not_counted_as_optimizer_time():
    run = Run(workers=0)
    phases = {"optimizer": 0.150, "optimizer/forward": 0.025, "optimizer/backward": 0.120, "optimizer/log": 0.001}
    run.steps(50, wait_s=0.0, phases=phases)
    run.live.close()
    assert run.live.postfix() == {"data": "0", "fwd": "25.0", "bwd": "120", "opt": "5.0"}


def test_a_line_is_printed_above_a_bar_of_tqdm(capsys):
    with tqdm(total=3, desc="training", mininterval=0, ascii=True) as bar:
        bar.update()
        print_above_bars("[DATA] hello")
        bar.update()
    drawn = capsys.readouterr().err
    before, _, after = drawn.partition("[DATA] hello\n")
    assert before.endswith("\r")  # the bar's line was cleared
    assert "training" in before
    assert "training" in after


def test_a_line_is_printed_above_a_bar_of_rich():
    screen = io.StringIO()
    with Progress(console=Console(file=screen, force_terminal=True, width=80), auto_refresh=False) as bar:
        bar.add_task("training", total=3)
        print_above_bars("[DATA] hello")
    bar, line = next(line for line in screen.getvalue().split("\n") if "hello" in line).rsplit("\x1b[2K", 1)
    assert "training" in bar
    assert line == "[DATA] hello"  # on a line that was cleared


def test_without_a_bar_a_plain_line_is_printed(capsys):
    print_above_bars("[DATA] hello")
    assert capsys.readouterr() == ("", "[DATA] hello\n")


def test_nothing_is_printed_after_the_terminal_has_failed(caplog):
    calls = []

    def fail(text):
        calls.append(text)
        raise OSError("gone away")

    live = LiveLines(fail, window=2)
    with caplog.at_level(logging.WARNING, "penstock"):
        for batch in range(3):
            live.put(StepLine(loader=0, batch=batch, at_s=0.0, wait_s=0.0, step_s=1.0))
        live.close()
    assert len(calls) == 1
    assert caplog.messages == ["LiveLines is switched off: OSError: gone away"]


def test_lines_have_ascii_glyphs_where_the_encoding_of_stderr_needs_them(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(raw, encoding="ascii"))
    print_above_bars("penstock: lagging worker · 3×")
    assert raw.getvalue() == b"penstock: lagging worker - 3x\n"
