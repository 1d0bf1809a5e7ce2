"""Where a card's time went, as it is told: in a status line, in a recording, on the page, in a trace."""

from penstock.core.hops import Hop
from penstock.core.stats import EngineStats, GpuTimes, LoaderStats
from penstock.diagnose.verdict import diagnose
from penstock.recording.format import HopsLine, LoaderLine, RunLine
from penstock.recording.reader import Recording
from penstock.report.html import render_html
from penstock.report.sections import card_note
from penstock.report.text import status_line
from penstock.report.trace import trace_events
from penstock.watcher.loader_views import PenstockLoaderView


def stats(step_s, card):
    return LoaderStats(0, 0, 100, 10, 10, 0, Hop("deliver"), Hop("step", step_s), EngineStats(), card)


def recording(*cards):
    lines = tuple(
        HopsLine(loader=0, at_s=2.0 * at, hops={"step": (2.0 * at, 0.0, 0.0)}, gpu_times=card)
        for at, card in enumerate(cards)
    )
    return Recording(run=RunLine(), loaders={0: LoaderLine(loader=0, name="train", type="penstock")}, hops=lines)


def test_a_status_line_has_the_stalls_since_the_last_one():
    before, now = stats(10.0, GpuTimes(1.0, 1.0, 4.0)), stats(20.0, GpuTimes(3.0, 1.5, 5.0))
    assert status_line(before, None).endswith("| card stalled 40%, copies seen 10%")
    assert status_line(now, before).endswith("| card stalled 10%, copies seen 5%")
    assert "card" not in status_line(stats(10.0, None), None)


def test_sums_that_were_begun_anew_are_all_there_is():
    assert GpuTimes(1.0, 0.1, 0.2).since(GpuTimes(5.0, 1.0, 1.0)) == GpuTimes(1.0, 0.1, 0.2)


def test_a_watched_loader_of_ours_has_them_in_its_recording():
    class Watched:
        card = None

        def stats(self):
            return stats(10.0, self.card)

    loader = Watched()
    side = PenstockLoaderView(loader, 0, "train")
    assert side.poll(1.0)[0].gpu_times is None
    loader.card = GpuTimes(3.0, 1.0, 2.0)
    assert side.poll(2.0)[0].gpu_times == (3.0, 1.0, 2.0)


def test_the_page_says_how_long_the_card_had_nothing_to_do():
    run = recording((0.0, 0.0, 0.0), (1.0, 0.1, 0.2), (2.0, 0.2, 0.4))
    said = "nothing to do for the training in 10 % of the time. Batches were on their way to it in 50 %"
    assert said in card_note(run)
    assert said in render_html(run, diagnose(run))
    assert card_note(recording(None, None)) == ""
    assert card_note(recording((0.0, 0.0, 0.0))) == ""


def test_a_trace_counts_it_over_time():
    events = trace_events(recording((0.0, 0.0, 0.0), (1.0, 0.1, 0.2)), 0.0, 9.0)["traceEvents"]
    (counted,) = [event["args"] for event in events if event["name"] == "card"]
    assert counted == {"stalled": 0.1, "copies seen": 0.05}
