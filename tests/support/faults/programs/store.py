"""Serve the files of a folder over TCP with delays: `store.py FOLDER DELAY_S TAIL_SHARE TAIL_S`.

A request is a file's name and a newline; the answer is its size, a newline, and its bytes. The server ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress
from pathlib import Path


class Store:
    """A server that delays every answer by `delay_s`, and a random share of them, `tail_share`, by `tail_s` more."""

    def __init__(self, folder: Path, delay_s: float, tail_share: float, tail_s: float) -> None:
        self._files = {file.name: file.read_bytes() for file in folder.iterdir()}
        self._delay_s = delay_s
        self._tail_share = tail_share
        self._tail_s = tail_s
        self._rng = random.Random(7)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection; it is cancelled if a client still has it open when the server ends."""
        with suppress(asyncio.CancelledError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while name := (await reader.readline()).decode().strip():
            tail_s = self._tail_s if self._rng.random() < self._tail_share else 0.0
            if self._delay_s + tail_s > 0:
                await asyncio.sleep(self._delay_s + tail_s)
            data = self._files[name]
            writer.write(b"%d\n" % len(data) + data)
            await writer.drain()


async def main() -> None:
    """Serve, and print the port when the server is ready."""
    store = Store(Path(sys.argv[1]), *map(float, sys.argv[2:5]))
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read, 1)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
