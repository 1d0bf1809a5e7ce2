"""What the conductor's thread hears: a bell that any other thread can ring, and its workers' pipes."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import connection


class Wakeup:
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


_HEAD = struct.Struct("<q")
_PIECE = 64 << 10


class Pipe:
    """One end. Whoever must not wait looks first whether there is something, and takes it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._come = bytearray()

    def fileno(self) -> int:
        """To wait on."""
        return self._fd

    def send(self, message: bytes) -> None:
        """All of it, once there is room; an OSError if nobody is there to read."""
        rest = memoryview(_HEAD.pack(len(message)) + message)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def receive(self) -> list[bytes]:
        """What has come, one message at least; EOFError if nothing will come any more."""
        while not (messages := self.take()):
            pass
        return messages

    def take(self) -> list[bytes]:
        """Messages that are whole with what lies ready; none if the rest of one is still to be sent."""
        self._come += self._more(max(_PIECE, self._missing()))
        return self._whole()

    def close(self) -> None:
        """A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _more(self, most: int) -> bytes:
        data = os.read(self._fd, most)
        if not data:
            raise EOFError
        return data

    def _missing(self) -> int:
        """Of the first message; 0 as long as its length is not known."""
        return _HEAD.size + _HEAD.unpack_from(self._come)[0] - len(self._come) if len(self._come) >= _HEAD.size else 0

    def _whole(self) -> list[bytes]:
        """Messages that are complete, taken out."""
        messages = []
        at = 0
        while len(self._come) - at >= _HEAD.size:
            end = at + _HEAD.size + _HEAD.unpack_from(self._come, at)[0]
            if end > len(self._come):
                break
            messages.append(bytes(self._come[at + _HEAD.size : end]))
            at = end
        del self._come[:at]
        return messages
