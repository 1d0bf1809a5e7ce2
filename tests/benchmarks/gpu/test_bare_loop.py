"""The bare loop that a loader on a GPU machine is compared with."""

import os

from benchmarks.gpu.bare_loop import bare_decode_rate

from benchmarks.gpu import bare_loop
from penstock import Image, Label
from penstock.testing import IMAGENET, sample_parts


def test_all_cores_decode_every_field(monkeypatch):
    monkeypatch.setattr(bare_loop, "SECONDS", 0.05)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    samples = [sample_parts(IMAGENET, number, scale=0.1) for number in range(2)]
    assert bare_decode_rate(samples, {"image": Image(".jpg", size=8), "label": Label(".cls")}) > 0
