"""Recordings of a penstock.Loader over an object store: what the watcher would have written."""

from dataclasses import dataclass, field

from penstock.recording.format import EpochStartLine, HopsLine, LoaderLine, Machine, RunLine, StepLine, StoreRequests
from penstock.recording.reader import Recording

BATCH_S, SAMPLES = 0.1, 16
"""Seconds from one batch to the next, and samples in each."""


@dataclass
class StoreRun:
    """The properties of a run; a test changes those that matter and calls `recording()`.

    The line of hops is written every second, and a batch is received every 0.1 s.
    """

    seconds: int = 10
    """Duration of an epoch."""
    epochs: int = 1
    wait_s: float = 0.06
    """Seconds that the loop waits for each batch."""
    readers: int = 16
    request_bytes: int = 2 << 20
    answer_s: float = 0.03
    """Seconds from a request to the first byte of its answer."""
    body_s: float = 0.01
    """Seconds from the first byte to the last."""
    read_busy: float = 0.95
    """Share of the readers' time that they are busy."""
    decode_busy: float = 0.3
    decode_starved: float = 0.6
    changes: tuple = ()
    """Changes of the autotuner, in the line of the third second."""
    from_store: float = 1.0
    """Share of the loader's bytes that came from the store; the rest came from a cache."""
    from_store_again: float | None = None
    """The same in later epochs; None: as in the first."""
    type: str = "penstock"
    more: dict = field(default_factory=dict)
    """Further fields of each line of hops."""

    def recording(self):
        end_s = self.seconds * self.epochs
        batches = round(self.seconds / BATCH_S)
        steps = [
            StepLine(
                loader=0,
                epoch=number // batches,
                batch=number % batches,
                at_s=number * BATCH_S,
                wait_s=self.wait_s,
                step_s=BATCH_S - self.wait_s,
                samples=SAMPLES,
            )
            for number in range(batches * self.epochs)
        ]
        return Recording(
            run=RunLine(machine=Machine(cores=8, usable_cores=8)),
            loaders={0: LoaderLine(loader=0, type=self.type, batches=batches)},
            epochs=tuple(
                EpochStartLine(loader=0, epoch=epoch, at_s=epoch * self.seconds) for epoch in range(self.epochs)
            ),
            steps=tuple(steps),
            hops=tuple(self._hops_line(second) for second in range(end_s + 1)),
        )

    def _hops_line(self, second):
        """Return the sums after so many seconds. The readers always wait for a request, so their time gives the number
        of requests."""
        requests = second * self.readers / (self.answer_s + self.body_s)
        answers, bytes_read = round(requests), requests * self.request_bytes
        from_store_later = self.from_store if self.from_store_again is None else self.from_store_again
        first_epoch_s = min(second, self.seconds)
        later_s = second - first_epoch_s
        share = (first_epoch_s * self.from_store + later_s * from_store_later) / second if second else 0.0
        return HopsLine(
            loader=0,
            at_s=float(second),
            hops={
                "read": _hop(second * self.readers, self.read_busy, 0.0),
                "decode": _hop(second * 4, self.decode_busy, self.decode_starved),
            },
            workers=4,
            readers=self.readers,
            bytes_read=round(bytes_read),
            store=StoreRequests(
                answers=round(answers * share),
                bytes_read=round(bytes_read * share),
                answer_s=answers * share * self.answer_s,
                body_s=answers * share * self.body_s,
            ),
            changes=self.changes if second == 3 else (),
            **self.more,
        )


def _hop(total_s, busy, starved):
    """Return the seconds busy, starved and blocked from the shares of the first two."""
    return total_s * busy, total_s * starved, total_s * max(0.0, 1 - busy - starved)
