"""What the conductor's thread hears: a bell that any other thread can ring, and its workers' pipes."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import connection


class Bell:
    """A pipe to oneself. Its descriptors live as long as somebody holds the bell, so nobody ever rings a stranger's."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._rung = False

    def fileno(self) -> int:
        """Readable after a ring."""
        return self._read

    def ring(self) -> None:
        """Takes no lock and never waits; one ring stands for all until it is heard."""
        if self._rung:
            return
        self._rung = True
        with suppress(BlockingIOError):  # full: rung often enough
            os.write(self._write, b"x")

    def hush(self) -> None:
        """Forget the rings so far: before looking at what they are about."""
        with suppress(BlockingIOError):
            os.read(self._read, 65536)
        self._rung = False

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Listener:
    """Waits for any of several descriptors. They change seldom, so what the system is asked is kept between waits."""

    def __init__(self) -> None:
        self._heard: tuple[int, ...] = ()
        self._poll = select.poll() if hasattr(select, "poll") else None

    def wait(self, descriptors: Iterable[int], timeout_s: float) -> list[int]:
        """Those that can be read from, or have been closed at the other end."""
        wanted = tuple(descriptors)
        if self._poll is None:
            return connection.wait(wanted, timeout_s)  # type: ignore[return-value]
        if wanted != self._heard:
            for descriptor in self._heard:
                self._poll.unregister(descriptor)
            for descriptor in wanted:
                self._poll.register(descriptor, select.POLLIN)
            self._heard = wanted
        return [descriptor for descriptor, _ in self._poll.poll(1000 * timeout_s)]
