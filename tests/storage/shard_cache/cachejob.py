"""A script that opens shards through a cache in its own process and reports what it read.

Run as: cachejob.py DIRECTORY BUDGET ROUNDS SHARD... ; prints one JSON line.
With `--hang-in-copy` it prints "copying" once the copy of its first shard is half done, and waits to be killed.
"""

import hashlib
import json
import os
import sys
import threading

from penstock.storage.shard_cache import copy as staging
from penstock.storage.shard_cache.cache import ShardCache


def hang_in_copy():
    crc32 = staging.deflate.crc32

    class Hanging:
        @staticmethod
        def crc32(data, start=0):
            print("copying", flush=True)
            threading.Event().wait()
            return crc32(data, start)

    staging.deflate = Hanging


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--hang-in-copy"]
    if "--hang-in-copy" in sys.argv:
        hang_in_copy()
    directory, budget, rounds, *shards = arguments
    cache = ShardCache(directory, int(budget))
    wrong = 0
    for _ in range(int(rounds)):
        for path in shards:
            with cache.open(path) as shard:
                digest = hashlib.sha256(os.pread(shard.fd, shard.size_bytes, 0)).digest()
            with open(path, "rb") as stream:
                wrong += digest != hashlib.sha256(stream.read()).digest()
    stats = cache.stats()
    fallbacks = {reason.name: count for reason, count in stats.fallbacks.items()}
    print(json.dumps({"wrong": wrong, "hits": stats.hits, "staged": stats.staged, "fallbacks": fallbacks}))


if __name__ == "__main__":
    main()
