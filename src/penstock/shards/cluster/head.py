"""Whether the head node of a cluster is still there.

Ray itself waits a minute for a head that is gone, answers no question meanwhile, and then ends the process that asked:
nobody would learn that the work can be gone on with. So we knock at its door ourselves, and give up before Ray does.
"""

from __future__ import annotations

import socket

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError

KNOCK_S = 2.0
"""Within which a head that lives opens its door."""
PATIENCE_S = 20.0
"""How long it may be away: where somebody watches over it, a head comes back."""
PAUSE_S = 0.5


class Head:
    """The door of the head node, and since when nobody has opened it."""

    def __init__(self, address: str, clock: Clock = SYSTEM_CLOCK) -> None:
        host, _, port = address.rpartition(":")
        self._door = host.strip("[]"), int(port)
        self._address = address
        self._clock = clock
        self._away_s: float | None = None

    def answers(self) -> bool:
        """Whether it can be asked something now; an error if it has been away for too long."""
        try:
            socket.create_connection(self._door, KNOCK_S).close()
        except OSError as error:
            now_s = self._clock.now()
            self._away_s = now_s if self._away_s is None else self._away_s
            if now_s - self._away_s >= PATIENCE_S:
                raise PenstockError(
                    f"the head node of the Ray cluster, {self._address}, is gone",
                    stage="work",
                    advice="Run the same command again on a cluster that lives: what is finished is kept.",
                ) from error
            return False
        self._away_s = None
        return True

    def wait(self) -> None:
        """Until it answers; an error if it does not."""
        while not self.answers():
            self._clock.sleep(PAUSE_S)
