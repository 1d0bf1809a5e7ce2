"""For tests, ours and yours: a shard maker, byte-level corrupters, a clock you own, a network that fails."""

from __future__ import annotations

from penstock.testing import corrupt
from penstock.testing.clock import FakeClock
from penstock.testing.images import make_image
from penstock.testing.maker import make_folder, make_shards
from penstock.testing.presets import IMAGENET, MULTICAMERA, PRESETS, REID, SA1B, Preset
from penstock.testing.samples import sample_parts
from penstock.testing.tar_writer import tar_bytes

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
