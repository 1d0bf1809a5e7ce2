"""The trace is one that viewers accept: named threads, nested slices, arrows in pairs."""

import json
from collections import defaultdict

import pytest
from tests.support.report_runs import empty, gpu_run, hops_run, stalling

from penstock.recording.format import FetchLine, HopsLine, LoaderLine, RunLine, StepLine
from penstock.recording.reader import Recording
from penstock.report.trace import LOOP, MACHINE, WORKERS, trace_events, trace_json


@pytest.fixture(scope="module")
def trace():
    return trace_events(stalling(), 5.0, 9.0)["traceEvents"]


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_only_events_of_the_window_are_in_the_trace(trace):
    outer = [event for event in of(trace, "X") if event["cat"] in ("step", "wait")]
    assert (
        min(event["ts"] + event["dur"] for event in outer) >= 5e6 - 50_001
    )  # the wait of a step that overlaps the begin
    assert max(event["ts"] for event in outer) <= 9e6 + 600_001  # the step after a wait that began inside
    ends_s = {step.batch: step.at_s + step.wait_s + step.step_s for step in stalling().steps if step.at_s < 9}
    assert {event["args"]["batch"] for event in outer} == {batch for batch, end_s in ends_s.items() if end_s > 5}


def test_times_are_sorted_microseconds_and_never_negative(trace):
    timed = [event for event in trace if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert all(event["dur"] >= 0 for event in of(trace, "X"))
    steps = [event for event in of(trace, "X") if event["cat"] == "step"]
    assert {round(event["dur"]) for event in steps} == {50_000}


def test_every_thread_in_use_has_a_name(trace):
    processes = {event["pid"]: event["args"]["name"] for event in of(trace, "M") if event["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in of(trace, "M") if e["name"] == "thread_name"}
    assert processes == {LOOP: "training loop", MACHINE: "machine", WORKERS: "workers of train"}
    assert {(e["pid"], e["tid"]) for e in of(trace, "X")} <= threads.keys()
    assert sorted(threads.values()) == ["train", *(f"worker {number}" for number in range(8))]


def test_slices_of_a_thread_nest(trace):
    assert_nested(trace)


def test_simultaneous_epochs_over_one_loader_have_threads_of_their_own():
    """The lines are those of zip(loader, loader), followed by an epoch alone."""
    lines = [(batch, batch * 1.0 + 0.2 * epoch, epoch) for batch in range(3) for epoch in range(2)] + [(0, 9.0, 2)]
    steps = [
        StepLine(loader=0, epoch=epoch, batch=batch, at_s=at_s, wait_s=0.1, step_s=0.9, phases={"forward": 0.5})
        for batch, at_s, epoch in lines
    ]
    fetches = [
        FetchLine(loader=0, epoch=epoch, batch=batch, worker=0, at_s=at_s - 0.4, fetch_s=0.4)
        for batch, at_s, epoch in lines
        if at_s >= 0.4
    ]
    recording = Recording(
        run=RunLine(), loaders={0: LoaderLine(loader=0, name="train")}, steps=tuple(steps), fetches=tuple(fetches)
    )
    events = trace_events(recording, 0.0, 20.0)["traceEvents"]
    assert_nested(events)
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in of(events, "M") if e["name"] == "thread_name"}
    assert sorted(threads.values()) == ["train", "train (2)", "worker 0", "worker 0 (2)"]
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xsf"} == threads.keys()
    assert len(of(events, "s")) == len(of(events, "f")) == len(fetches)


def assert_nested(trace):
    threads = defaultdict(list)
    for event in of(trace, "X"):
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():
        open_ends = []
        for start, end in slices:
            while open_ends and open_ends[-1] <= start + 0.01:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.01
            open_ends.append(end)


def test_arrows_lead_from_the_end_of_a_fetch_to_the_step_that_consumed_it(trace):
    starts = {event["id"]: event for event in of(trace, "s")}
    ends = {event["id"]: event for event in of(trace, "f")}
    assert starts
    assert starts.keys() == ends.keys()
    assert all(starts[number]["ts"] <= ends[number]["ts"] for number in starts)
    assert all(event["bp"] == "e" and event["pid"] == LOOP for event in ends.values())
    slices = of(trace, "X")
    for arrow in starts.values():
        same_thread = [s for s in slices if (s["pid"], s["tid"]) == (arrow["pid"], arrow["tid"])]
        assert any(s["ts"] <= arrow["ts"] <= s["ts"] + s["dur"] for s in same_thread)


def test_collate_is_the_last_part_of_its_fetch(trace):
    fetches = {(e["tid"], round(e["ts"] + e["dur"], 1)) for e in of(trace, "X") if e["name"].startswith("batch ")}
    collates = {(e["tid"], round(e["ts"] + e["dur"], 1)) for e in of(trace, "X") if e["name"] == "collate"}
    assert collates == fetches


def test_there_are_counters_for_ready_batches_cores_disk_and_gpu(trace):
    assert {event["name"] for event in of(trace, "C")} == {
        "batches of loader 0", "cores in use", "disk sda", "GPU 0",
    }  # fmt: skip


def test_hops_are_counters_of_shares():
    events = of(trace_events(hops_run(), 0.0, 100.0)["traceEvents"], "C")
    decode = [event["args"] for event in events if event["name"] == "hop decode"]
    assert len(decode) == 3
    assert decode[0] == pytest.approx({"busy": 0.95, "starved": 0.0375, "blocked": 0.0125})


def test_restarted_sums_of_hops_give_no_share_for_that_moment():
    lines = tuple(
        HopsLine(loader=0, at_s=at_s, hops={"read": (busy, 0.0, 0.0)})
        for at_s, busy in ((1.0, 9.0), (2.0, 1.0), (3.0, 2.0))
    )
    recording = Recording(run=RunLine(), loaders={0: LoaderLine(loader=0)}, hops=lines)
    events = of(trace_events(recording, 0.0, 9.0)["traceEvents"], "C")
    assert [(event["ts"], event["args"]["busy"]) for event in events] == [(2e6, 1.0)]


def test_phases_longer_than_their_step_are_cut_and_keep_their_true_time():
    step = StepLine(loader=0, batch=1, at_s=0.0, wait_s=0.0, step_s=1.0, phases={"a": 0.8, "b": 0.7, "c": 0.1})
    recording = Recording(run=RunLine(), loaders={0: LoaderLine(loader=0)}, steps=(step,))
    phases = [e for e in of(trace_events(recording, 0.0, 1.0)["traceEvents"], "X") if e["cat"] == "phase"]
    assert [(e["name"], e["dur"], e["args"]["seconds"]) for e in phases] == [("a", 8e5, 0.8), ("b", 2e5, 0.7)]


def test_a_main_process_that_prepares_batches_itself_has_a_thread():
    fetch = FetchLine(loader=0, batch=0, worker=-1, at_s=0.0, fetch_s=1.0)
    recording = Recording(run=RunLine(), loaders={0: LoaderLine(loader=0)}, fetches=(fetch,))
    events = trace_events(recording, 0.0, 1.0)["traceEvents"]
    assert "main process" in [event["args"]["name"] for event in of(events, "M")]
    assert all(event["tid"] > 0 for event in of(events, "X"))


def test_a_trace_is_json_even_without_events():
    assert json.loads(trace_json(empty(), 0.0, 1.0))["displayTimeUnit"] == "ms"
    assert json.loads(trace_json(stalling(), 0.0, 1.0))["traceEvents"]


def test_a_step_without_timed_phases_is_marked():
    steps = tuple(
        StepLine(loader=0, batch=batch, at_s=batch, wait_s=0.2, step_s=0.8, profiled=batch == 0) for batch in range(2)
    )
    recording = Recording(run=RunLine(), loaders={0: LoaderLine(loader=0)}, steps=steps)
    slices = [event for event in of(trace_events(recording, 0, 9)["traceEvents"], "X") if event["cat"] == "step"]
    assert [event["args"].get("phases") for event in slices] == [None, "not timed"]


def test_gpu_times_are_counters_of_shares():
    events = trace_events(gpu_run((0.0, 0.0, 0.0), (1.0, 0.1, 0.2)), 0.0, 9.0)["traceEvents"]
    (shares,) = [event["args"] for event in events if event["name"] == "GPU"]
    assert shares == {"stalled": 0.1, "waiting for copies": 0.05}
