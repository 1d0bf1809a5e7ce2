"""Messages over a socket between the conductor and a worker process.

`multiprocessing.Connection` asks the system twice for each message, and every question gives the interpreter's lock
away, which takes long to come back while readers want it too. Here one question brings all that has come.
"""

from __future__ import annotations

import os
import struct

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
