"""Tools for tests, also for those of users: a shard maker, generated images, byte-level corrupters, a fake clock."""

from __future__ import annotations

from penstock.testing import corrupt
from penstock.testing.clock import FakeClock
from penstock.testing.images import make_image
from penstock.testing.presets import IMAGENET, MULTICAMERA, PRESETS, REID, SA1B, Preset
from penstock.testing.samples import sample_parts
from penstock.testing.shard_maker import make_folder, make_shards, tar_bytes

__all__ = [
    "IMAGENET",
    "MULTICAMERA",
    "PRESETS",
    "REID",
    "SA1B",
    "FakeClock",
    "Preset",
    "corrupt",
    "make_folder",
    "make_image",
    "make_shards",
    "sample_parts",
    "tar_bytes",
]
