"""The race over the store; runs inside the peers' environment, each run in a fresh process.

Rules as in `benchmarks.peers.compare`: everybody is prepared and checked, scouted for the best number of workers (plain
reads: of requests in flight), and then runs the rounds that count, in which the order rotates.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from benchmarks.peers.compare import DEFAULT, Entry, Result, compare
from benchmarks.store.objects import FULL, QUICK, SAMPLE_BYTES, Size, folder_of
from benchmarks.store.server import Store
from penstock.bench.loader_run import LoaderRun, digest, run_in_child
from penstock.errors import PenstockError

LATENCY_S = 0.030
MB_S = 500.0
QUICKLY = Store(latency_s=0.001, bytes_per_s=1e9)
"""For looking at what everybody delivers."""

OURS = Entry("penstock", "ours")
PLAIN = Entry("plain", "own")
PEERS = (Entry("webdataset", "ours"), Entry("litdata", "ours"))
WORKERS = {"penstock": (DEFAULT,), "plain": (16, 32)}
PEER_WORKERS = (2, 4, 8, 16, 1)
"""Waiting costs no core, so more of them than cores may be better."""


class Runner:
    """The objects in the store, and the runs over them; what everybody delivers is looked at on a few samples."""

    def __init__(self, size: Size, address: str, small_address: str) -> None:
        self._size, self._address, self._small_address = size, address, small_address
        self._expected = len(size.keys), digest(size.keys)

    def worker_counts(self, entry: Entry) -> tuple[int, ...]:
        """The numbers of workers to try; a quick race only wants to know whether all run."""
        numbers = WORKERS.get(entry.loader, PEER_WORKERS)
        return numbers[:1] if self._size == QUICK else numbers

    def prepare(self, entry: Entry) -> None:
        """Convert, index: nothing of it is timed."""
        self._one(self._size, entry, "--prepare")

    @cached_property
    def expected_contents(self) -> str:
        """What `contents` has to be."""
        return self.contents(OURS)

    def contents(self, entry: Entry) -> str:
        """A digest of all values it delivers."""
        return self._one(QUICK, entry, "--contents").split()[-1]

    def run(self, entry: Entry, workers: int) -> LoaderRun:
        """One timed run, its rate that of all of it; PenstockError where it is not a whole one.

        Once running, a loader that has downloaded before it delivers would be faster than the store.
        """
        run = run_in_child(_arguments(self._address, self._size, entry, workers))
        run = replace(run, rate=run.samples / run.seconds)
        if (run.samples, run.keys_digest) != self._expected:
            raise PenstockError(f"delivered {run.samples} samples for {self._expected[0]}, or not each of them once")
        print(f"{entry.loader} {workers}: {run.rate * SAMPLE_BYTES / 1e6:.0f} MB/s", file=sys.stderr)
        return run

    def _one(self, size: Size, entry: Entry, what: str) -> str:
        address = self._address if size == self._size else self._small_address
        command = [sys.executable, "-m", *_arguments(address, size, entry, self.worker_counts(entry)[0]), what]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise PenstockError(f"failed, saying: {(done.stderr.strip() or 'nothing').splitlines()[-1]}")
        return done.stdout


def _arguments(address: str, size: Size, entry: Entry, workers: int) -> list[str]:
    chosen = ["--loader", entry.loader, "--workers", str(workers)]
    return ["benchmarks.store.single_run", address, *chosen, *(["--quick"] if size == QUICK else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb-s", type=float, default=MB_S, help="the store's bandwidth")
    parser.add_argument("--quick", action="store_true", help="a handful of samples: does everybody run?")
    parser.add_argument("--absent", default="{}", help="contestants that are not installed, with reasons, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="where the results go, as JSON")
    asked = parser.parse_args()
    absent: dict[str, str] = msgspec.json.decode(asked.absent)
    size, store = QUICK if asked.quick else FULL, Store(LATENCY_S, asked.mb_s * 1e6)
    with store.serving(folder_of(size)) as address, QUICKLY.serving(folder_of(QUICK)) as small_address:
        runner = Runner(size, address, small_address)
        present = [peer for peer in PEERS if peer.loader not in absent]
        results = compare(runner, [PLAIN, OURS, *present], asked.rounds)
    results += [
        Result(peer, failure=f"did not install: {absent[peer.loader]}") for peer in PEERS if peer.loader in absent
    ]
    asked.out.write_bytes(msgspec.json.encode(results))


if __name__ == "__main__":
    main()
