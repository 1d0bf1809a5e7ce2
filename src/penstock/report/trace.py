"""A window of a run as a Chrome trace, for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from penstock.core.hops import Hop
from penstock.core.stats import GpuTimes
from penstock.recording.format import FetchLine, HopsLine, LoaderLine, StepLine, SystemLine
from penstock.recording.reader import Recording
from penstock.report.run_summary import SAMPLER, inner_name, loader_name, place_phases

Event = dict[str, Any]
Thread = tuple[int, int]
"""The process and the thread of an event in the trace."""

LOOP, MACHINE, WORKERS = 1, 2, 1000
"""Process numbers: the training loop (a thread per loader), the machine, and each loader's workers from 1000 on."""
TRACK_STRIDE = 1_000_000
"""Difference between the thread numbers of epochs over one loader that run at the same time."""
_PHASE_NOTE = "recordings contain how long a phase took, not when: phases are placed end to end"


def trace_events(recording: Recording, first_s: float, last_s: float) -> dict[str, Any]:
    """Return the events that overlap the window, in the JSON object format; times are in µs since the run began."""
    steps = [step for step in recording.steps if step.at_s < last_s and _end_s(step) > first_s]
    fetches = [f for f in recording.fetches if f.at_s < last_s and f.at_s + f.fetch_s > first_s]
    tracks = _Tracks(steps)
    events = [event for step in steps for event in _step(step, tracks)]
    events += [event for fetch in fetches for event in _fetch(fetch, tracks)]
    events += _flows(steps, fetches, tracks)
    events += [event for a, b in _hop_pairs(recording.hops, first_s, last_s) for event in _hops(a, b)]
    events += [event for line in recording.system if first_s <= line.at_s < last_s for event in _system(line)]
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))  # an outer slice precedes its inner ones
    names = [*_names(recording, steps, fetches, tracks)]
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": {"phases": _PHASE_NOTE}}


def trace_json(recording: Recording, first_s: float, last_s: float) -> str:
    """Return the content of the file that the viewers open."""
    return json.dumps(trace_events(recording, first_s, last_s), separators=(",", ":"))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _end_s(step: StepLine) -> float:
    return step.at_s + step.wait_s + step.step_s


# -- the training loop ---------------------------------------------------------------------------------------------


class _Tracks:
    """The trace threads of steps and fetches.

    Epochs over one loader that run at the same time, as in zip(loader, loader), get tracks beside each other.
    """

    def __init__(self, steps: list[StepLine]) -> None:
        spans: dict[tuple[int, int], tuple[float, float]] = {}
        for step in steps:
            first_s, last_s = spans.get((step.loader, step.epoch), (step.at_s, 0.0))
            spans[step.loader, step.epoch] = min(first_s, step.at_s), max(last_s, _end_s(step))
        self._tracks: dict[tuple[int, int], int] = {}
        ends_s: dict[int, list[float]] = {}
        for (loader, epoch), (first_s, last_s) in sorted(spans.items(), key=lambda each: each[1]):
            loader_ends_s = ends_s.setdefault(loader, [])
            free = (number for number, end_s in enumerate(loader_ends_s) if end_s <= first_s)
            track = next(free, len(loader_ends_s))
            loader_ends_s[track : track + 1] = [last_s]
            self._tracks[loader, epoch] = track

    def of(self, line: StepLine | FetchLine) -> int:
        return self._tracks.get((line.loader, line.epoch), 0)

    def loop(self, step: StepLine) -> Thread:
        return LOOP, _thread_number(step.loader) + TRACK_STRIDE * self.of(step)

    def worker(self, fetch: FetchLine) -> Thread:
        return WORKERS + fetch.loader, _thread_number(fetch.worker) + TRACK_STRIDE * self.of(fetch)


def _step(step: StepLine, tracks: _Tracks) -> Iterator[Event]:
    """Yield the wait, the step with its phases, and the number of batches that were ready when the wait began."""
    wait_end_s = step.at_s + step.wait_s
    fields = {"batch": step.batch, "epoch": step.epoch, "worker": step.worker, "samples": step.samples}
    args: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if not step.profiled:
        args["phases"] = "not timed"
    thread = tracks.loop(step)
    yield _slice("wait", "wait", thread, step.at_s, step.wait_s, args)
    yield _slice("step", "step", thread, wait_end_s, step.step_s, args)
    step_phases = {name: seconds for name, seconds in step.phases.items() if name != SAMPLER}
    wait_phases = {name: step.phases[name] for name in step.phases if name == SAMPLER}
    yield from _phases(thread, wait_phases, step.at_s, wait_end_s)
    yield from _phases(thread, step_phases, wait_end_s, _end_s(step))
    counts = {"ready": step.ready, "outstanding": step.outstanding}
    counts = {name: value for name, value in counts.items() if value is not None}
    if counts:
        yield _counter(f"batches of loader {step.loader}", LOOP, step.at_s, counts)


def _phases(thread: Thread, phases: dict[str, float], start_s: float, end_s: float) -> Iterator[Event]:
    """Yield the phases end to end; one that exceeds the step is cut, and its arguments have its true time."""
    for path, _, at_s, seconds in place_phases(phases, start_s):
        if at_s < end_s:
            drawn_s = min(seconds, end_s - at_s)
            yield _slice(inner_name(path, phases), "phase", thread, at_s, drawn_s, {"path": path, "seconds": seconds})


# -- the workers ---------------------------------------------------------------------------------------------------


def _fetch(fetch: FetchLine, tracks: _Tracks) -> Iterator[Event]:
    """Yield the time in which a worker prepared a batch; collate is its last part."""
    thread = tracks.worker(fetch)
    names = ("samples", "cpu_s", "queue_s", "slowest_s", "read_bytes")
    args = {"epoch": fetch.epoch, **{name: getattr(fetch, name) for name in names}}
    yield _slice(f"batch {fetch.batch}", "fetch", thread, fetch.at_s, fetch.fetch_s, args)
    if 0 < fetch.collate_s <= fetch.fetch_s:
        at_s = fetch.at_s + fetch.fetch_s - fetch.collate_s
        yield _slice("collate", "fetch", thread, at_s, fetch.collate_s, {})


def _flows(steps: list[StepLine], fetches: list[FetchLine], tracks: _Tracks) -> Iterator[Event]:
    """Yield an arrow from each fetch to the step that consumed its batch, if both are in the window."""
    consumers = {(step.loader, step.epoch, step.batch): step for step in steps}
    for number, fetch in enumerate(fetches):
        step = consumers.get((fetch.loader, fetch.epoch, fetch.batch))
        if step is None:
            continue
        flow = {"name": "batch", "cat": "flow", "id": number}
        done_us, consumed_us = _us(fetch.at_s + fetch.fetch_s), _us(step.at_s + step.wait_s)
        inside_us = max(_us(fetch.at_s), done_us - 1)  # an arrow belongs to the slice that contains its time
        (from_pid, from_tid), (to_pid, to_tid) = tracks.worker(fetch), tracks.loop(step)
        yield {**flow, "ph": "s", "ts": inside_us, "pid": from_pid, "tid": from_tid}
        yield {**flow, "ph": "f", "bp": "e", "ts": consumed_us, "pid": to_pid, "tid": to_tid}


# -- hops and the machine ------------------------------------------------------------------------------------------


def _hop_pairs(lines: tuple[HopsLine, ...], first_s: float, last_s: float) -> Iterator[tuple[HopsLine, HopsLine]]:
    """Yield consecutive lines of the same loader that overlap the window."""
    for loader in dict.fromkeys(line.loader for line in lines):
        of_loader = [line for line in lines if line.loader == loader]
        yield from ((a, b) for a, b in pairwise(of_loader) if a.at_s < last_s and b.at_s > first_s)


def _hops(before: HopsLine, now: HopsLine) -> Iterator[Event]:
    """Yield the shares of each hop; sums that went down belong to restarted workers, and give no share."""
    for name, sums in now.hops.items():
        hop = Hop(name, *sums).since(Hop(name, *before.hops.get(name, (0.0, 0.0, 0.0))))
        if min(hop.busy_s, hop.starved_s, hop.blocked_s) >= 0:
            shares = {"busy": hop.busy, "starved": hop.starved, "blocked": hop.blocked}
            yield _counter(f"hop {name}", WORKERS + now.loader, before.at_s, shares)
    if before.gpu_times is not None and now.gpu_times is not None and now.at_s > before.at_s:
        times, seconds = GpuTimes(*now.gpu_times).since(GpuTimes(*before.gpu_times)), now.at_s - before.at_s
        shares = {"stalled": times.stalled_s / seconds, "waiting for copies": times.exposed_s / seconds}
        yield _counter("GPU", WORKERS + now.loader, before.at_s, shares)


def _system(line: SystemLine) -> Iterator[Event]:
    own = max(0.0, line.cpu - line.others_cpu)
    yield _counter("cores in use", MACHINE, line.at_s, {"this run": own, "others": line.others_cpu})
    for disk in line.disks:
        rates = {"read MB/s": disk.read_bytes_s / 1e6, "written MB/s": disk.write_bytes_s / 1e6}
        yield _counter(f"disk {disk.name}", MACHINE, line.at_s, rates)
    for number, gpu in enumerate(line.gpus):
        yield _counter(f"GPU {number}", MACHINE, line.at_s, {"utilisation": gpu.utilisation})


# -- the format ----------------------------------------------------------------------------------------------------


def _slice(name: str, category: str, thread: Thread, at_s: float, seconds: float, args: dict[str, Any]) -> Event:
    pid, tid = thread
    start_us, end_us = _us(at_s), _us(at_s + seconds)
    position = {"pid": pid, "tid": tid, "ts": start_us, "dur": max(0.0, round(end_us - start_us, 3))}
    return {"ph": "X", "name": name, "cat": category, **position, "args": args}


def _counter(name: str, pid: int, at_s: float, values: dict[str, Any]) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": _us(at_s), "args": values}


def _thread_number(number: int) -> int:
    """Return a number from 1 on; workers count from -1 (no workers: the main process prepares the batches)."""
    return number + 2


def _names(recording: Recording, steps: list[StepLine], fetches: list[FetchLine], tracks: _Tracks) -> Iterator[Event]:
    """Yield the names of processes and threads for the viewer."""
    yield _name("process_name", LOOP, 0, "training loop")
    for number, track in sorted({(step.loader, tracks.of(step)) for step in steps}):
        title = _loader_title(recording.loaders, number) + _track_suffix(track)
        yield _name("thread_name", LOOP, _thread_number(number) + TRACK_STRIDE * track, title)
    if recording.system:
        yield _name("process_name", MACHINE, 0, "machine")
    for number in sorted({fetch.loader for fetch in fetches} | {line.loader for line in recording.hops}):
        yield _name("process_name", WORKERS + number, 0, f"workers of {_loader_title(recording.loaders, number)}")
    for number, worker, track in sorted({(fetch.loader, fetch.worker, tracks.of(fetch)) for fetch in fetches}):
        title = ("main process" if worker < 0 else f"worker {worker}") + _track_suffix(track)
        yield _name("thread_name", WORKERS + number, _thread_number(worker) + TRACK_STRIDE * track, title)


def _track_suffix(track: int) -> str:
    return f" ({track + 1})" if track else ""


def _loader_title(loaders: dict[int, LoaderLine], number: int) -> str:
    found = loaders.get(number)
    return f"loader {number}" if found is None else loader_name(found)


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
