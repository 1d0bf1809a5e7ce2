"""What tests of the loader share, besides the fixtures of conftest.py."""


def keys_of(batches):
    """The samples' keys, in the order of delivery."""
    return [key for batch in batches for key in batch["__key__"]]
