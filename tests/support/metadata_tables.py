"""Tables of invented metadata (identity, modality, camera) for the tests of samplers."""

import random

from penstock.samplers import MetadataTable

MODALITIES = ("rgb", "ir", "sketch")


def random_table(identities=20, samples=400, seed=0, modalities=MODALITIES):
    """Return a table of samples with random identities, so that some have many samples and some few."""
    rng = random.Random(seed)
    return MetadataTable.of(
        identity=[rng.randrange(identities) for _ in range(samples)],
        modality=[rng.choice(modalities) for _ in range(samples)],
        camera=[rng.randrange(6) for _ in range(samples)],
    )


def table_of(*identities):
    """Return a table from a string per identity with a letter per sample, its modality: `table_of("rri", "r")`."""
    names = {"r": "rgb", "i": "ir", "s": "sketch"}
    rows = [(identity, names[letter]) for identity, letters in enumerate(identities) for letter in letters]
    return MetadataTable.of(identity=[identity for identity, _ in rows], modality=[modality for _, modality in rows])
