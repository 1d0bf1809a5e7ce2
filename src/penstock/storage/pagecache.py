"""Whether it makes sense to read data through the kernel's page cache."""

from __future__ import annotations

from penstock.storage.freememory import free_bytes

SHARE = 2
"""Data may take one part in this many of the free memory to be worth caching: the training needs the rest."""


def holds(size_bytes: int) -> bool:
    """Whether the cache could keep all of it for the next epoch.

    If not, every read would push out what is needed later, and pay a copy and half a core's work per GB for it.
    """
    return size_bytes <= free_bytes() // SHARE
