"""What tests of the loader share, besides the fixtures of conftest.py."""


def keys_of(batches):
    """The samples' keys, in the order of delivery."""
    return [key for batch in batches for key in batch["__key__"]]


def settle(tier):
    """Wait until the cache's staging threads have dealt with every shard that was requested."""
    threads, tier._threads = tier._threads, None
    if threads is None:
        return
    for _ in threads._threads:
        threads.wanted.put(None)
    for thread in threads._threads:
        thread.join(60)
        assert not thread.is_alive()
    tier._under_way.clear()
