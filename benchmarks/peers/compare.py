"""All contestants over all kinds of shards; runs inside the peers' environment, each run in a fresh process.

For each kind: prepare and check everybody, scout for each one's best number of workers, then the rounds that count, in
which the order rotates. Who loses or doubles a sample, or delivers other shapes or (with our decoder) other values,
is out, with the reason.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec

from benchmarks.peers.kinds import KINDS
from benchmarks.peers.task import Decoder
from penstock.bench.loader_run import LoaderRun, digest, run_in_child
from penstock.core.cores import usable_cores
from penstock.errors import PenstockError

SEARCH = (2, 4, 1)
"""Workers of a peer: the best of these is its result. One is not tried where four were better than two."""
DEFAULT = 0
"""Workers of ours: as many as the loader sees fit."""


@dataclass(frozen=True)
class Entry:
    loader: str
    decoder: Decoder
    packed: bool = False

    @property
    def workers(self) -> tuple[int, ...]:
        return {"penstock": (DEFAULT,), "bare": (usable_cores(),)}.get(self.loader, SEARCH)

    def __str__(self) -> str:
        return f"{self.loader}/{self.decoder}{' packed' if self.packed else ''}"


OURS = Entry("penstock", "ours")
PACKED = Entry("penstock", "ours", packed=True)
BARE = Entry("bare", "ours")
PEERS = ("field", "webdataset", "spdl", "dali", "litdata", "mosaic")
ENTRIES = (
    OURS,
    BARE,
    *(Entry(peer, "own") for peer in PEERS),
    *(Entry(peer, "ours") for peer in PEERS if peer != "dali"),  # whose operators are not Python
)


@dataclass(frozen=True)
class Result:
    """How one entry did."""

    entry: Entry
    workers: int = DEFAULT
    runs: list[LoaderRun] = field(default_factory=list)
    """One a round, all of them whole."""
    failure: str | None = None
    """Why it has no result."""


Results = dict[str, list[Result]]
"""By kind."""


def entries_of(kind: str) -> list[Entry]:
    match kind:
        case "sa1b":
            return [*ENTRIES, PACKED]
        case "sa1b-heavy" | "imagenet-heavy":  # to be seen beside the light ones: no need for everybody
            return [entry for entry in ENTRIES if entry.loader not in ("dali", "litdata", "mosaic")]
    return list(ENTRIES)


class Runner:
    """One kind of shards, and the runs over it."""

    def __init__(self, kind: str, quick: bool) -> None:
        self._kind, self._quick = kind, quick
        keys = KINDS[kind].keys(quick)
        self._samples, self._digest = len(keys), digest(keys)

    def worker_counts(self, entry: Entry) -> tuple[int, ...]:
        """The numbers of workers to try; a quick race only wants to know whether all run, with the most."""
        return (max(entry.workers),) if self._quick else entry.workers

    def prepare(self, entry: Entry) -> None:
        """Convert, index, read once: nothing of it is timed."""
        self._one(entry, entry.workers[0], "--prepare", quick=self._quick)

    @cached_property
    def expected_contents(self) -> str:
        """What `contents` has to be."""
        return self.contents(OURS)

    def contents(self, entry: Entry) -> str:
        """A digest of all values it delivers, over the small shards."""
        return self._one(entry, max(entry.workers), "--contents", quick=True).split()[-1]

    def run(self, entry: Entry, workers: int) -> LoaderRun:
        """One timed run; PenstockError where it is not a whole one."""
        run = run_in_child(_arguments(self._kind, entry, workers, self._quick))
        if (run.samples, run.keys_digest) != (self._samples, self._digest):
            raise PenstockError(f"delivered {run.samples} samples for {self._samples}, or not each of them once")
        print(f"{self._kind} {entry} {workers}: {run.rate:.0f}/s", file=sys.stderr)
        return run

    def _one(self, entry: Entry, workers: int, *more: str, quick: bool) -> str:
        command = [sys.executable, "-m", *_arguments(self._kind, entry, workers, quick), *more]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip() or "nothing").splitlines()[-1]
            raise PenstockError(f"failed, saying: {said}")
        return done.stdout


def _arguments(kind: str, entry: Entry, workers: int, quick: bool) -> list[str]:
    chosen = ["--kind", kind, "--loader", entry.loader, "--decoder", entry.decoder, "--workers", str(workers)]
    flags = [*(["--packed"] if entry.packed else []), *(["--quick"] if quick else [])]
    return ["benchmarks.peers.single_run", *chosen, *flags]


def compare(runner: Runner, entries: Sequence[Entry], rounds: int) -> list[Result]:
    """Everybody's result, in the order of the entries."""
    results = [choose_workers(runner, result) for result in check_entries(runner, entries)]
    for number in range(rounds):
        for place in range(len(results)):
            at = (place + number) % len(results)
            results[at] = _again(runner, results[at])
    return results


def check_entries(runner: Runner, entries: Sequence[Entry]) -> list[Result]:
    """Those who start and, where our decoder is in them, deliver what we deliver, value by value."""
    results = []
    for entry in entries:
        try:
            runner.prepare(entry)
            same = (
                entry in (BARE, PACKED) or entry.decoder == "own" or runner.contents(entry) == runner.expected_contents
            )
            results.append(Result(entry, failure=None if same else "delivers other values than Penstock"))
        except PenstockError as error:
            results.append(Result(entry, failure=_in_short(error)))
    return results


def choose_workers(runner: Runner, result: Result) -> Result:
    """Its best number of workers."""
    if result.failure is not None:
        return result
    found: dict[int, float] = {}
    reasons = []
    for workers in runner.worker_counts(result.entry):
        if workers == 1 and found.get(4, 0.0) > found.get(2, 0.0):
            break
        try:
            found[workers] = runner.run(result.entry, workers).rate
        except PenstockError as error:
            reasons.append(_in_short(error))
    if not found:
        return replace(result, failure=reasons[-1])
    return replace(result, workers=max(found, key=found.__getitem__))


def _again(runner: Runner, result: Result) -> Result:
    if result.failure is not None:
        return result
    try:
        return replace(result, runs=[*result.runs, runner.run(result.entry, result.workers)])
    except PenstockError as error:
        return replace(result, runs=[], failure=_in_short(error))


def _in_short(error: PenstockError) -> str:
    """The last line of what a child said is what went wrong; the rest is on stderr."""
    print(error, file=sys.stderr)
    return str(error).rpartition(" | ")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], help="which ones; all if none is named")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a handful of samples: does everybody run?")
    parser.add_argument("--absent", default="{}", help="contestants that are not installed, with reasons, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="where the results go, as JSON")
    asked = parser.parse_args()
    absent: dict[str, str] = msgspec.json.decode(asked.absent)
    results: Results = {}
    for kind in asked.kinds or KINDS:
        present = [entry for entry in entries_of(kind) if entry.loader not in absent]
        missing = [entry for entry in entries_of(kind) if entry.loader in absent]
        results[kind] = compare(Runner(kind, asked.quick), present, asked.rounds)
        results[kind] += [Result(entry, failure=f"did not install: {absent[entry.loader]}") for entry in missing]
        asked.out.write_bytes(msgspec.json.encode(results))


if __name__ == "__main__":
    main()
