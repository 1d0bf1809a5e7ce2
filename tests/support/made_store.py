"""Recordings of a penstock.Loader over an object store: what the watcher would have written."""

from dataclasses import dataclass, field

from penstock.recording.format import EpochStartLine, HopsLine, LoaderLine, Machine, RunLine, StepLine, StoreRequests
from penstock.recording.reader import Recording

BATCH, SAMPLES = 0.1, 16


@dataclass
class MadeStore:
    """A run to be: change what matters for the test, then `recording()`. A look a second, a batch in 0.1 s."""

    seconds: int = 10
    passes: int = 1
    wait_s: float = 0.06
    """Of each batch."""
    readers: int = 16
    request_bytes: int = 2 << 20
    answer_s: float = 0.03
    body_s: float = 0.01
    read_busy: float = 0.95
    decode_busy: float = 0.3
    decode_starved: float = 0.6
    changes: tuple = ()
    from_store: float = 1.0
    """Of the loader's bytes."""
    from_store_again: float | None = None
    """The same in later passes."""
    type: str = "penstock"
    more: dict = field(default_factory=dict)
    """Of each line of hops."""

    def recording(self):
        end_s = self.seconds * self.passes
        count = round(self.seconds / BATCH)
        steps = [
            StepLine(
                loader=0,
                epoch=number // count,
                batch=number % count,
                at_s=number * BATCH,
                wait_s=self.wait_s,
                step_s=BATCH - self.wait_s,
                samples=SAMPLES,
            )
            for number in range(count * self.passes)
        ]
        return Recording(
            run=RunLine(machine=Machine(cores=8, usable_cores=8)),
            loaders={0: LoaderLine(loader=0, type=self.type, batches=count)},
            epochs=tuple(
                EpochStartLine(loader=0, epoch=number, at_s=number * self.seconds) for number in range(self.passes)
            ),
            steps=tuple(steps),
            hops=tuple(self._line(at) for at in range(end_s + 1)),
        )

    def _line(self, at):
        """After so many seconds: readers are never idle, so requests follow from their time."""
        answers = round(at * self.readers / (self.answer_s + self.body_s))
        again = self.from_store if self.from_store_again is None else self.from_store_again
        first = min(at, self.seconds)
        own = at * self.readers / (self.answer_s + self.body_s) * self.request_bytes
        share = (first * self.from_store + (at - first) * again) / at if at else 0.0
        return HopsLine(
            loader=0,
            at_s=float(at),
            hops={
                "read": _hop(at * self.readers, self.read_busy, 0.0),
                "decode": _hop(at * 4, self.decode_busy, self.decode_starved),
            },
            workers=4,
            readers=self.readers,
            bytes_read=round(own),
            store=StoreRequests(
                answers=round(answers * share),
                bytes_read=round(own * share),
                answer_s=answers * share * self.answer_s,
                body_s=answers * share * self.body_s,
            ),
            changes=self.changes if at == 3 else (),
            **self.more,
        )


def _hop(total_s, busy, starved):
    return total_s * busy, total_s * starved, total_s * max(0.0, 1 - busy - starved)
