"""How other threads and worker processes reach the scheduler's thread: a wake-up, and pipes of messages."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import connection


class Wakeup:
    """A pipe with which any thread can end the wait of another one.

    Its descriptors stay open as long as the object is referenced, so `wake` never writes to a descriptor that has been
    closed and reused by another file.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._pending = False

    def fileno(self) -> int:
        """Return the descriptor that is readable after a call of `wake`."""
        return self._read

    def wake(self) -> None:
        """End the wait of the other thread. Takes no lock and never blocks; further calls before `clear` do nothing."""
        if self._pending:
            return
        self._pending = True
        with suppress(BlockingIOError):  # the pipe is full, so the descriptor is readable anyway
            os.write(self._write, b"x")

    def clear(self) -> None:
        """Forget the calls of `wake` so far. Call it before reading what they are about."""
        with suppress(BlockingIOError):
            os.read(self._read, 65536)
        self._pending = False

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Poller:
    """Waits for any of several descriptors. They rarely change, so their registrations are kept between waits."""

    def __init__(self) -> None:
        self._registered: tuple[int, ...] = ()
        self._poll = select.poll() if hasattr(select, "poll") else None

    def wait(self, descriptors: Iterable[int], timeout_s: float) -> list[int]:
        """Return the descriptors that are readable, or whose other end has been closed; none after the timeout."""
        requested = tuple(descriptors)
        if self._poll is None:
            return connection.wait(requested, timeout_s)  # type: ignore[return-value]
        if requested != self._registered:
            for descriptor in self._registered:
                self._poll.unregister(descriptor)
            for descriptor in requested:
                self._poll.register(descriptor, select.POLLIN)
            self._registered = requested
        return [descriptor for descriptor, _ in self._poll.poll(1000 * timeout_s)]


_LENGTH = struct.Struct("<q")
"""Written before each message."""
_READ_BYTES = 64 << 10


class Pipe:
    """One end of a connection that carries whole messages."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._received = bytearray()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._fd

    def send(self, message: bytes) -> None:
        """Write the whole message, blocking while the pipe is full; an OSError if the other end is closed."""
        rest = memoryview(_LENGTH.pack(len(message)) + message)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def receive(self) -> list[bytes]:
        """Wait for at least one message; EOFError if the other end is closed."""
        while not (messages := self.receive_available()):
            pass
        return messages

    def receive_available(self) -> list[bytes]:
        """Read once, and return the messages that are complete; none while the rest of one is still to come."""
        self._received += self._read_some(max(_READ_BYTES, self._missing_bytes()))
        return self._take_complete()

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_some(self, max_bytes: int) -> bytes:
        data = os.read(self._fd, max_bytes)
        if not data:
            raise EOFError
        return data

    def _missing_bytes(self) -> int:
        """Return the bytes that are missing of the first message; 0 as long as its length is not known."""
        received = self._received
        return _LENGTH.size + _LENGTH.unpack_from(received)[0] - len(received) if len(received) >= _LENGTH.size else 0

    def _take_complete(self) -> list[bytes]:
        """Remove the complete messages from what was received, and return them."""
        messages = []
        start = 0
        while len(self._received) - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(self._received, start)[0]
            if end > len(self._received):
                break
            messages.append(bytes(self._received[start + _LENGTH.size : end]))
            start = end
        del self._received[:start]
        return messages
