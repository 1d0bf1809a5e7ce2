"""A window of a run as a Chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from penstock.core.hops import Hop
from penstock.core.stats import GpuTimes
from penstock.recording.format import FetchLine, HopsLine, LoaderLine, StepLine, SystemLine
from penstock.recording.reader import Recording
from penstock.report.numbers import IN_THE_WAIT, inner_name, lay_out, loader_name

Event = dict[str, Any]

LOOP, MACHINE, WORKERS = 1, 2, 1000
"""Processes of the trace: the training loop (a thread per loader), the machine, and each loader's workers from 1000."""
BESIDE = 1_000_000
"""Between the numbers of threads that belong to passes over one loader at the same time."""
_PHASE_NOTE = "recordings keep how long a phase took, not when: phases are laid end to end"


def trace_events(recording: Recording, first_s: float, last_s: float) -> dict[str, Any]:
    """What lies in the window, wholly or in part, in the JSON object format; times in µs since the run began."""
    steps = [step for step in recording.steps if step.at_s < last_s and _end_s(step) > first_s]
    fetches = [f for f in recording.fetches if f.at_s < last_s and f.at_s + f.fetch_s > first_s]
    lanes = _Lanes(steps)
    events = [event for step in steps for event in _step(step, lanes)]
    events += [event for fetch in fetches for event in _fetch(fetch, lanes)]
    events += _flows(steps, fetches, lanes)
    events += [event for a, b in _hop_pairs(recording.hops, first_s, last_s) for event in _hops(a, b)]
    events += [event for look in recording.system if first_s <= look.at_s < last_s for event in _system(look)]
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))  # the outer slice before the inner
    names = [*_names(recording, steps, fetches, lanes)]
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": {"phases": _PHASE_NOTE}}


def trace_json(recording: Recording, first_s: float, last_s: float) -> str:
    """The file that viewers open."""
    return json.dumps(trace_events(recording, first_s, last_s), separators=(",", ":"))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _end_s(step: StepLine) -> float:
    return step.at_s + step.wait_s + step.step_s


# -- the loop ------------------------------------------------------------------------------------------------------


class _Lanes:
    """Passes over one loader at the same time, as in zip(loader, loader), lie beside each other, each in its lane."""

    def __init__(self, steps: list[StepLine]) -> None:
        spans: dict[tuple[int, int], tuple[float, float]] = {}
        for step in steps:
            first_s, last_s = spans.get((step.loader, step.epoch), (step.at_s, 0.0))
            spans[step.loader, step.epoch] = min(first_s, step.at_s), max(last_s, _end_s(step))
        self._lanes: dict[tuple[int, int], int] = {}
        ends_s: dict[int, list[float]] = {}
        for (loader, number), (first_s, last_s) in sorted(spans.items(), key=lambda each: each[1]):
            mine = ends_s.setdefault(loader, [])
            lane = next((at for at, end_s in enumerate(mine) if end_s <= first_s), len(mine))
            mine[lane : lane + 1] = [last_s]
            self._lanes[loader, number] = lane

    def of(self, line: StepLine | FetchLine) -> int:
        return self._lanes.get((line.loader, line.epoch), 0)

    def loop(self, step: StepLine) -> tuple[int, int]:
        return LOOP, _thread(step.loader) + BESIDE * self.of(step)

    def worker(self, fetch: FetchLine) -> tuple[int, int]:
        return WORKERS + fetch.loader, _thread(fetch.worker) + BESIDE * self.of(fetch)


def _step(step: StepLine, lanes: _Lanes) -> Iterator[Event]:
    """The wait, then the step with its phases; and what lay ready when the loop asked."""
    got_s = step.at_s + step.wait_s
    what: dict[str, Any] = {"batch": step.batch, "pass": step.epoch, "worker": step.worker, "samples": step.samples}
    known = {name: value for name, value in what.items() if value is not None}
    if not step.profiled:
        known["phases"] = "not looked at"
    where = lanes.loop(step)
    yield _slice("wait", "wait", where, step.at_s, step.wait_s, known)
    yield _slice("step", "step", where, got_s, step.step_s, known)
    inside = {name: seconds for name, seconds in step.phases.items() if name != IN_THE_WAIT}
    waited = {name: step.phases[name] for name in step.phases if name == IN_THE_WAIT}
    yield from _phases(where, waited, step.at_s, got_s)
    yield from _phases(where, inside, got_s, _end_s(step))
    counts = {"ready": step.ready, "outstanding": step.outstanding}
    counts = {name: value for name, value in counts.items() if value is not None}
    if counts:
        yield _counter(f"batches of loader {step.loader}", LOOP, step.at_s, counts)


def _phases(where: tuple[int, int], phases: dict[str, float], start_s: float, end_s: float) -> Iterator[Event]:
    """End to end; one that would stick out is drawn as far as the step goes, and says its true length."""
    for path, _, at_s, seconds in lay_out(phases, start_s):
        if at_s < end_s:
            drawn_s = min(seconds, end_s - at_s)
            name = inner_name(path, phases)
            args = {"path": path, "seconds": seconds}
            yield _slice(name, "phase", where, at_s, drawn_s, args)


# -- the workers ---------------------------------------------------------------------------------------------------


def _fetch(fetch: FetchLine, lanes: _Lanes) -> Iterator[Event]:
    """A batch in the making; collate is its last part."""
    where = lanes.worker(fetch)
    named = ("samples", "cpu_s", "queue_s", "slowest_s", "read_bytes")
    args = {"pass": fetch.epoch, **{name: getattr(fetch, name) for name in named}}
    yield _slice(f"batch {fetch.batch}", "fetch", where, fetch.at_s, fetch.fetch_s, args)
    if 0 < fetch.collate_s <= fetch.fetch_s:
        at_s = fetch.at_s + fetch.fetch_s - fetch.collate_s
        yield _slice("collate", "fetch", where, at_s, fetch.collate_s, {})


def _flows(steps: list[StepLine], fetches: list[FetchLine], lanes: _Lanes) -> Iterator[Event]:
    """An arrow from each batch's making to the step that took it, where both are in the window."""
    takers = {(step.loader, step.epoch, step.batch): step for step in steps}
    for number, fetch in enumerate(fetches):
        taker = takers.get((fetch.loader, fetch.epoch, fetch.batch))
        if taker is None:
            continue
        flow = {"name": "batch", "cat": "flow", "id": number}
        done_us, taken_us = _us(fetch.at_s + fetch.fetch_s), _us(taker.at_s + taker.wait_s)
        inside_us = max(_us(fetch.at_s), done_us - 1)  # an arrow belongs to the slice around its time
        (from_pid, from_tid), (to_pid, to_tid) = lanes.worker(fetch), lanes.loop(taker)
        yield {**flow, "ph": "s", "ts": inside_us, "pid": from_pid, "tid": from_tid}
        yield {**flow, "ph": "f", "bp": "e", "ts": taken_us, "pid": to_pid, "tid": to_tid}


# -- hops and the machine ------------------------------------------------------------------------------------------


def _hop_pairs(lines: tuple[HopsLine, ...], first_s: float, last_s: float) -> Iterator[tuple[HopsLine, HopsLine]]:
    """Neighbouring looks at the same loader; sums that went down are those of new workers, and tell nothing."""
    for loader in dict.fromkeys(line.loader for line in lines):
        mine = [line for line in lines if line.loader == loader]
        yield from ((a, b) for a, b in pairwise(mine) if a.at_s < last_s and b.at_s > first_s)


def _hops(before: HopsLine, now: HopsLine) -> Iterator[Event]:
    for name, sums in now.hops.items():
        share = Hop(name, *sums).since(Hop(name, *before.hops.get(name, (0.0, 0.0, 0.0))))
        if min(share.busy_s, share.starved_s, share.blocked_s) >= 0:
            shares = {"busy": share.busy, "starved": share.starved, "blocked": share.blocked}
            yield _counter(f"hop {name}", WORKERS + now.loader, before.at_s, shares)
    if before.gpu_times is not None and now.gpu_times is not None and now.at_s > before.at_s:
        times, seconds = GpuTimes(*now.gpu_times).since(GpuTimes(*before.gpu_times)), now.at_s - before.at_s
        shares = {"stalled": times.stalled_s / seconds, "copies seen": times.exposed_s / seconds}
        yield _counter("card", WORKERS + now.loader, before.at_s, shares)


def _system(look: SystemLine) -> Iterator[Event]:
    run = max(0.0, look.cpu - look.others_cpu)
    yield _counter("cores in use", MACHINE, look.at_s, {"this run": run, "others": look.others_cpu})
    for disk in look.disks:
        rates = {"read MB/s": disk.read_bytes_s / 1e6, "written MB/s": disk.write_bytes_s / 1e6}
        yield _counter(f"disk {disk.name}", MACHINE, look.at_s, rates)
    for number, gpu in enumerate(look.gpus):
        yield _counter(f"GPU {number}", MACHINE, look.at_s, {"utilisation": gpu.utilisation})


# -- the format ----------------------------------------------------------------------------------------------------


def _slice(
    name: str, category: str, where: tuple[int, int], at_s: float, seconds: float, args: dict[str, Any]
) -> Event:
    pid, tid = where
    start_us, end_us = _us(at_s), _us(at_s + seconds)
    place = {"pid": pid, "tid": tid, "ts": start_us, "dur": max(0.0, round(end_us - start_us, 3))}
    return {"ph": "X", "name": name, "cat": category, **place, "args": args}


def _counter(name: str, pid: int, at_s: float, values: dict[str, Any]) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": _us(at_s), "args": values}


def _thread(lane: int) -> int:
    """Lanes count from -1 (no workers: the main process makes the batches); threads from 1."""
    return lane + 2


def _names(recording: Recording, steps: list[StepLine], fetches: list[FetchLine], lanes: _Lanes) -> Iterator[Event]:
    """What the viewer calls each process and thread."""
    yield _name("process_name", LOOP, 0, "training loop")
    for number, lane in sorted({(step.loader, lanes.of(step)) for step in steps}):
        title = _called(recording.loaders, number) + _beside(lane)
        yield _name("thread_name", LOOP, _thread(number) + BESIDE * lane, title)
    if recording.system:
        yield _name("process_name", MACHINE, 0, "machine")
    for number in sorted({fetch.loader for fetch in fetches} | {line.loader for line in recording.hops}):
        yield _name("process_name", WORKERS + number, 0, f"workers of {_called(recording.loaders, number)}")
    for number, worker, lane in sorted({(fetch.loader, fetch.worker, lanes.of(fetch)) for fetch in fetches}):
        title = ("main process" if worker < 0 else f"worker {worker}") + _beside(lane)
        yield _name("thread_name", WORKERS + number, _thread(worker) + BESIDE * lane, title)


def _beside(lane: int) -> str:
    return f" ({lane + 1})" if lane else ""


def _called(loaders: dict[int, LoaderLine], number: int) -> str:
    found = loaders.get(number)
    return f"loader {number}" if found is None else loader_name(found)


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
