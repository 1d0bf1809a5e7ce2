"""What tests of the loader share, besides the fixtures of conftest.py."""

import dataclasses

from penstock.options import EngineOptions, ErrorOptions, ReadOptions


def keys_of(batches):
    """The samples' keys, in the order of delivery."""
    return [key for batch in batches for key in batch["__key__"]]


def wait_for_copies(tier):
    """Wait until the cache's staging threads have dealt with every shard that was requested."""
    threads, tier._threads = tier._threads, None
    if threads is None:
        return
    for _ in threads._threads:
        threads.wanted.put(None)
    for thread in threads._threads:
        thread.join(60)
        assert not thread.is_alive()
    tier._pending.clear()


def loader_settings(**settings):
    """Keyword arguments of a Loader for settings that are given by their names alone, without their option groups."""
    arguments = dict(settings)
    for name, kind in {"reading": ReadOptions, "errors": ErrorOptions, "engine": EngineOptions}.items():
        options = {each.name: arguments.pop(each.name) for each in dataclasses.fields(kind) if each.name in arguments}
        if options:
            arguments[name] = kind(**options)
    return arguments
