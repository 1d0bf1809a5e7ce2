"""A store on the network that answers late: `store.py FOLDER DELAY_S TAIL_SHARE TAIL_S`, until its input ends.

A request is a file's name and a newline; the answer is its size, a newline, and its bytes.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress
from pathlib import Path


class Store:
    """Every request waits `delay_s`; one in a while waits `tail_s` more, whichever file it asks for."""

    def __init__(self, folder: Path, delay_s: float, tail_share: float, tail_s: float) -> None:
        self._files = {file.name: file.read_bytes() for file in folder.iterdir()}
        self._delay_s = delay_s
        self._tail_share = tail_share
        self._tail_s = tail_s
        self._chance = random.Random(7)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request; a worker may still hold it when we end."""
        with suppress(asyncio.CancelledError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while name := (await reader.readline()).decode().strip():
            late = self._tail_s if self._chance.random() < self._tail_share else 0.0
            if self._delay_s + late > 0:
                await asyncio.sleep(self._delay_s + late)
            data = self._files[name]
            writer.write(b"%d\n" % len(data) + data)
            await writer.drain()


async def main() -> None:
    """Says its port when it is ready."""
    store = Store(Path(sys.argv[1]), *map(float, sys.argv[2:5]))
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read, 1)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
