"""Shards whose samples all have the same size, so that blocks and lanes are equal too."""

import io

import numpy as np
from tests.support.loader_helpers import loader_settings

import penstock
from penstock.testing import tar_bytes

SHARDS, PER_SHARD = 4, 16
SAMPLES = SHARDS * PER_SHARD
GLOBAL_BATCH = 8
STEPS = SAMPLES // GLOBAL_BATCH
MIDDLE = 3
FIELDS = {"x": penstock.Array(".npy")}
SETTINGS = {"shuffle": True, "seed": 3, "lanes": 8, "block_bytes": 2 * (128 + 32 * 8)}
"""There are two samples in a block, and four blocks in a lane."""


def make_arrays(folder):
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        members = [(f"{shard}{number:03d}.npy", _saved(rng.normal(size=32))) for number in range(PER_SHARD)]
        (folder / f"arrays-{shard}.tar").write_bytes(tar_bytes(members))
    return folder


def make_loader(folder, ranks, **settings):
    """Return the loader of this rank; the global batch is the same for any number of ranks."""
    return penstock.Loader(
        f"{folder}/*.tar", FIELDS, GLOBAL_BATCH // ranks, **loader_settings(**{**SETTINGS, **settings})
    )


def _saved(array):
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue()
