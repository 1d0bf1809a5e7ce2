"""Functions that tests of the loader share, besides the fixtures of conftest.py."""

import dataclasses

from penstock.options import EngineOptions, ErrorOptions, ReadOptions


def keys_of(batches):
    """Return the keys of the samples in the order of delivery."""
    return [key for batch in batches for key in batch["__key__"]]


def wait_for_copies(tier):
    """Wait until the threads of the cache have copied every shard that was requested (or failed to)."""
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
    """Return the keyword arguments of a Loader for options given without their group, as in `num_readers=2`."""
    arguments = dict(settings)
    for group, options_class in {"reading": ReadOptions, "errors": ErrorOptions, "engine": EngineOptions}.items():
        names = [option.name for option in dataclasses.fields(options_class) if option.name in arguments]
        if names:
            arguments[group] = options_class(**{name: arguments.pop(name) for name in names})
    return arguments
