"""Compares all loaders over all kinds of shards. It runs in the peers' environment; every run is a fresh process.

For each kind, every loader is prepared and its output is checked; one run with each number of workers finds the best
number; then come the rounds that count, in which the order rotates. A loader that loses or repeats a sample, or
delivers other shapes or (with our decoder) other values, is excluded, and the reason is recorded.
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

PEER_WORKERS = (2, 4, 1)
"""Numbers of workers that are tried for a peer; the best one counts. 1 is not tried if 4 were better than 2."""
DEFAULT_WORKERS = 0
"""The number of workers of Penstock: it chooses the number itself."""


@dataclass(frozen=True)
class Entry:
    """One loader with one decoder, which is one row of the results."""

    loader: str
    decoder: Decoder
    packed: bool = False
    """Whether it reads shards that `penstock shards pack` has made."""

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of workers to try."""
        return {"penstock": (DEFAULT_WORKERS,), "bare": (usable_cores(),)}.get(self.loader, PEER_WORKERS)

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
    *(Entry(peer, "ours") for peer in PEERS if peer != "dali"),  # DALI's operators cannot call our Python functions
)


@dataclass(frozen=True)
class Result:
    """The outcome of one entry."""

    entry: Entry
    workers: int = DEFAULT_WORKERS
    runs: list[LoaderRun] = field(default_factory=list)
    """One run per round; each delivered every sample once."""
    failure: str | None = None
    """The reason why the entry has no result; None if it has one."""


Results = dict[str, list[Result]]
"""The results of all entries, by kind of shards."""


def entries_of(kind: str) -> list[Entry]:
    """Return the entries that are compared on this kind of shards."""
    match kind:
        case "sa1b":
            return [*ENTRIES, PACKED]
        case "sa1b-heavy" | "imagenet-heavy":  # these only show the effect of larger JPEGs, so fewer peers are enough
            return [entry for entry in ENTRIES if entry.loader not in ("dali", "litdata", "mosaic")]
        case "imagenet-crop":  # SPDL's own decoder, FFmpeg, has no random crop of this kind
            return [entry for entry in ENTRIES if entry.loader in ("penstock", "bare", "field", "webdataset", "dali")]
    return list(ENTRIES)


class Runner:
    """Starts the runs over one kind of shards."""

    def __init__(self, kind: str, quick: bool) -> None:
        self._kind, self._quick = kind, quick
        keys = KINDS[kind].keys(quick)
        self.delivers_random_values = KINDS[kind].random
        self._samples, self._digest = len(keys), digest(keys)

    def worker_counts(self, entry: Entry) -> tuple[int, ...]:
        """Return the numbers of workers to try; only the largest in a quick comparison, which checks that all run."""
        return (max(entry.workers),) if self._quick else entry.workers

    def prepare(self, entry: Entry) -> None:
        """Make the shards, and what the loader makes once for a dataset (an index, a copy in its own format).

        None of this is timed.
        """
        self._run_untimed(entry, entry.workers[0], "--prepare", quick=self._quick)

    @cached_property
    def expected_contents(self) -> str:
        """The digest that `contents` must return for every entry with our decoder."""
        return self.contents(OURS)

    def contents(self, entry: Entry) -> str:
        """Return a digest of all values that the entry delivers over the small shards."""
        return self._run_untimed(entry, max(entry.workers), "--contents", quick=True).split()[-1]

    def run(self, entry: Entry, workers: int) -> LoaderRun:
        """Return one timed run; raise PenstockError if it did not deliver every sample exactly once."""
        run = run_in_child(_arguments(self._kind, entry, workers, self._quick))
        if (run.samples, run.keys_digest) != (self._samples, self._digest):
            raise PenstockError(f"delivered {run.samples} samples for {self._samples}, or not each of them once")
        print(f"{self._kind} {entry} {workers}: {run.rate:.0f}/s", file=sys.stderr)
        return run

    def _run_untimed(self, entry: Entry, workers: int, flag: str, quick: bool) -> str:
        command = [sys.executable, "-m", *_arguments(self._kind, entry, workers, quick), flag]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise PenstockError(f"failed: {(done.stderr.strip() or 'its stderr is empty').splitlines()[-1]}")
        return done.stdout


def _arguments(kind: str, entry: Entry, workers: int, quick: bool) -> list[str]:
    values = ["--kind", kind, "--loader", entry.loader, "--decoder", entry.decoder, "--workers", str(workers)]
    flags = [*(["--packed"] if entry.packed else []), *(["--quick"] if quick else [])]
    return ["benchmarks.peers.single_run", *values, *flags]


def compare(runner: Runner, entries: Sequence[Entry], rounds: int) -> list[Result]:
    """Return the result of every entry, in the order of the entries."""
    results = [choose_workers(runner, result) for result in check_entries(runner, entries)]
    for round_number in range(rounds):
        for place in range(len(results)):
            turn = (place + round_number) % len(results)
            results[turn] = _add_round(runner, results[turn])
    return results


def check_entries(runner: Runner, entries: Sequence[Entry]) -> list[Result]:
    """Prepare every entry, and compare the values of those with our decoder with Penstock's, unless they are random.

    The bare loop, which delivers no values, and packed shards, which hold recompressed images, are not compared.
    """
    results = []
    for entry in entries:
        try:
            runner.prepare(entry)
            same = (
                entry in (BARE, PACKED)
                or entry.decoder == "own"
                or runner.delivers_random_values
                or runner.contents(entry) == runner.expected_contents
            )
            results.append(Result(entry, failure=None if same else "delivers other values than Penstock"))
        except PenstockError as error:
            results.append(Result(entry, failure=_last_line(error)))
    return results


def choose_workers(runner: Runner, result: Result) -> Result:
    """Set the number of workers that is fastest in one run each; numbers with which a run fails do not count."""
    if result.failure is not None:
        return result
    rates: dict[int, float] = {}
    failures = []
    for workers in runner.worker_counts(result.entry):
        if workers == 1 and rates.get(4, 0.0) > rates.get(2, 0.0):
            break
        try:
            rates[workers] = runner.run(result.entry, workers).rate
        except PenstockError as error:
            failures.append(_last_line(error))
    if not rates:
        return replace(result, failure=failures[-1])
    return replace(result, workers=max(rates, key=rates.__getitem__))


def _add_round(runner: Runner, result: Result) -> Result:
    if result.failure is not None:
        return result
    try:
        return replace(result, runs=[*result.runs, runner.run(result.entry, result.workers)])
    except PenstockError as error:
        return replace(result, runs=[], failure=_last_line(error))


def _last_line(error: PenstockError) -> str:
    """Print the error, and return the last line of the child's stderr that it quotes, which states the cause."""
    print(error, file=sys.stderr)
    return str(error).rpartition(" | ")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], help="which kinds of shards; all if none is named")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few samples, only to check that every loader runs")
    parser.add_argument("--absent", default="{}", help="loaders that are not installed, with reasons, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="the file for the results, as JSON")
    options = parser.parse_args()
    absent: dict[str, str] = msgspec.json.decode(options.absent)
    results: Results = {}
    for kind in options.kinds or KINDS:
        present = [entry for entry in entries_of(kind) if entry.loader not in absent]
        missing = [entry for entry in entries_of(kind) if entry.loader in absent]
        results[kind] = compare(Runner(kind, options.quick), present, options.rounds)
        results[kind] += [Result(entry, failure=f"did not install: {absent[entry.loader]}") for entry in missing]
        options.out.write_bytes(msgspec.json.encode(results))


if __name__ == "__main__":
    main()
