"""What comes next in an epoch: jobs in order, whose blocks are asked for before there is a slab for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from penstock.core.supply import NO_BLOCK, Supply
from penstock.engine.batch import Ids, Job
from penstock.engine.residency import Residency

PLANNED = 64
"""Batches whose blocks are asked for before they have a slab, as far as the arena has room."""
AT_ONCE = 8
"""Of these, planned in one go: one after each step of the loop would find cold code each time. And no more, so that
somebody can begin with the first of them: a pass begins while the loop waits."""


class Agenda:
    """Owned by the conductor's thread."""

    def __init__(self, supply: Supply, residency: Residency) -> None:
        self._supply = supply
        self._residency = residency
        self._jobs: Iterator[Job] | None = None
        self._planned: deque[tuple[Job, Ids]] = deque()

    def begin(self, jobs: Iterator[Job] | None) -> None:
        """Of an epoch; what is left of the one before is dropped."""
        self._jobs = jobs
        self._planned.clear()

    def __len__(self) -> int:
        return len(self._planned)

    @property
    def over(self) -> bool:
        """Whether nothing follows any more."""
        return self._jobs is None and not self._planned

    @property
    def enough(self) -> bool:
        """Until there is room for `AT_ONCE` more."""
        return len(self._planned) > PLANNED - AT_ONCE

    @property
    def whole(self) -> bool:
        """Whether one worker each makes what was planned last."""
        return bool(self._planned) and self._planned[-1][0].whole

    def grows(self, most: int) -> bool:
        """Whether `plan` would do something, with so many at most."""
        return self._jobs is not None and not self.enough and self._has_room(most)

    def plan(self, most: int) -> None:
        """Ask for the blocks of the next `AT_ONCE`, in order, as far as that is of use."""
        if self.enough:
            return
        for _ in range(AT_ONCE):
            if self._jobs is None or not self._has_room(most):
                return
            job = next(self._jobs, None)
            if job is None:
                self._jobs = None
                return
            blocks = self._supply.blocks_of(job.samples)
            # All are needed: in the order of their place a disk seeks less. Not by np.unique, whose C++ aborts a
            # program that ends meanwhile, as it may around a daemon thread.
            for block in sorted(set(blocks.tolist())):
                if block != NO_BLOCK:
                    self._residency.want(block)
            self._planned.append((job, blocks))
            self._residency.pump()

    def _has_room(self, most: int) -> bool:
        return len(self._planned) < most and not self._residency.blocked

    def take(self) -> tuple[Job, Ids]:
        """The next job, and the blocks of its samples."""
        return self._planned.popleft()
