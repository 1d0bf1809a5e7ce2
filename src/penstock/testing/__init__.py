"""For tests, ours and yours: a shard maker, byte-level corrupters, a clock you own, a network that fails."""

from __future__ import annotations

from penstock.testing import corrupt, hostile
from penstock.testing.clock import FakeClock
from penstock.testing.maker import make_folder, make_shards
from penstock.testing.pictures import picture
from penstock.testing.presets import IMAGENET, MULTICAMERA, PRESETS, REID, SA1B, Preset
from penstock.testing.proxy import FaultProxy
from penstock.testing.samples import sample_parts
from penstock.testing.tars import tar_bytes

__all__ = [
    "IMAGENET",
    "MULTICAMERA",
    "PRESETS",
    "REID",
    "SA1B",
    "FakeClock",
    "FaultProxy",
    "Preset",
    "corrupt",
    "hostile",
    "make_folder",
    "make_shards",
    "picture",
    "sample_parts",
    "tar_bytes",
]
