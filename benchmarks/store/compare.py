"""Compares the loaders on the store. It runs in the peers' environment; every run is a fresh process.

The procedure is that of `benchmarks.peers.compare`: every loader is prepared and its output is checked; one run with
each number of workers (plain reads: of requests in flight) finds the best number; then come the rounds that count, in
which the order rotates.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from benchmarks.peers.compare import DEFAULT_WORKERS, Entry, Result, compare
from benchmarks.store.objects import FULL, QUICK, SAMPLE_BYTES, Size, folder_of
from benchmarks.store.server import Store
from penstock.bench.loader_run import LoaderRun, digest, run_in_child
from penstock.errors import PenstockError

LATENCY_S = 0.030
MB_S = 500.0
FAST_STORE = Store(latency_s=0.001, bytes_per_s=1e9)
"""A store with little delay, on which the output of the loaders is checked."""

OURS = Entry("penstock", "ours")
PLAIN = Entry("plain", "own")
PEERS = (Entry("webdataset", "ours"), Entry("litdata", "ours"))
WORKERS = {"penstock": (DEFAULT_WORKERS,), "plain": (16, 32)}
PEER_WORKERS = (2, 4, 8, 16, 1)
"""A worker that waits uses no core, so more workers than cores may be better."""


class Runner:
    """Starts the runs over the objects of the store; the output of the loaders is checked on a few samples."""

    def __init__(self, size: Size, address: str, quick_address: str) -> None:
        self._size, self._address, self._quick_address = size, address, quick_address
        self._expected = len(size.keys), digest(size.keys)

    def worker_counts(self, entry: Entry) -> tuple[int, ...]:
        """Return the numbers of workers to try; only the first in a quick comparison, which checks that all run."""
        numbers = WORKERS.get(entry.loader, PEER_WORKERS)
        return numbers[:1] if self._size == QUICK else numbers

    def prepare(self, entry: Entry) -> None:
        """Make what the loader makes once for a dataset (an index, a copy in its own format); this is not timed."""
        self._run_untimed(self._size, entry, "--prepare")

    @cached_property
    def expected_contents(self) -> str:
        """The digest that `contents` must return for every entry that is checked."""
        return self.contents(OURS)

    def contents(self, entry: Entry) -> str:
        """Return a digest of all values that the entry delivers from the objects of the size QUICK."""
        return self._run_untimed(QUICK, entry, "--contents").split()[-1]

    def run(self, entry: Entry, workers: int) -> LoaderRun:
        """Return one timed run; raise PenstockError if it did not deliver every sample exactly once.

        Its rate is that of the whole run: after the first batches, a loader that downloads before it delivers would
        be faster than the store.
        """
        run = run_in_child(_arguments(self._address, self._size, entry, workers))
        run = replace(run, rate=run.samples / run.seconds)
        if (run.samples, run.keys_digest) != self._expected:
            raise PenstockError(f"delivered {run.samples} samples for {self._expected[0]}, or not each of them once")
        print(f"{entry.loader} {workers}: {run.rate * SAMPLE_BYTES / 1e6:.0f} MB/s", file=sys.stderr)
        return run

    def _run_untimed(self, size: Size, entry: Entry, flag: str) -> str:
        address = self._address if size == self._size else self._quick_address
        command = [sys.executable, "-m", *_arguments(address, size, entry, self.worker_counts(entry)[0]), flag]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise PenstockError(f"failed: {(done.stderr.strip() or 'its stderr is empty').splitlines()[-1]}")
        return done.stdout


def _arguments(address: str, size: Size, entry: Entry, workers: int) -> list[str]:
    values = ["--loader", entry.loader, "--workers", str(workers)]
    return ["benchmarks.store.single_run", address, *values, *(["--quick"] if size == QUICK else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb-s", type=float, default=MB_S, help="the store's bandwidth in MB/s")
    parser.add_argument("--quick", action="store_true", help="a few samples, only to check that every loader runs")
    parser.add_argument("--absent", default="{}", help="loaders that are not installed, with reasons, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="the file for the results, as JSON")
    options = parser.parse_args()
    absent: dict[str, str] = msgspec.json.decode(options.absent)
    size, store = QUICK if options.quick else FULL, Store(LATENCY_S, options.mb_s * 1e6)
    with store.serving(folder_of(size)) as address, FAST_STORE.serving(folder_of(QUICK)) as quick_address:
        runner = Runner(size, address, quick_address)
        present = [peer for peer in PEERS if peer.loader not in absent]
        results = compare(runner, [PLAIN, OURS, *present], options.rounds)
    results += [
        Result(peer, failure=f"did not install: {absent[peer.loader]}") for peer in PEERS if peer.loader in absent
    ]
    options.out.write_bytes(msgspec.json.encode(results))


if __name__ == "__main__":
    main()
