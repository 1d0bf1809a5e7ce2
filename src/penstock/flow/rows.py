"""How a row lies, which readers write and workers read: slot, sample, then a few columns for each wanted part.

Of a part: offset in the arena, length, which of the field's suffixes it is, CRC32 if whoever wrote the shard knew it.
A part that the worker is to read for itself has shard and offset there, as a negative number.
"""

PARTS = 2
"""Where the first part's columns begin."""
WIDTH = 4
"""Columns of a part."""
NO_CRC = -1
