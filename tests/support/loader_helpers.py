"""What tests of the loader share, besides the fixtures of conftest.py."""


def keys_of(batches):
    """The samples' keys, in the order of delivery."""
    return [key for batch in batches for key in batch["__key__"]]


def settle(tier):
    """All that is wanted of a cache's tier has been dealt with."""
    crew, tier._crew = tier._crew, None
    if crew is None:
        return
    for _ in crew._threads:
        crew.wanted.put(None)
    for thread in crew._threads:
        thread.join(60)
        assert not thread.is_alive()
    tier._under_way.clear()
