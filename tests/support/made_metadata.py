"""Made-up metadata of identities in several modalities, for the tests of samplers."""

import random

from penstock.samplers import MetadataTable

MODALITIES = ("rgb", "ir", "sketch")


def random_table(identities=20, samples=400, seed=0, modalities=MODALITIES):
    """Return samples of random identities: some have many samples, some few."""
    rng = random.Random(seed)
    return MetadataTable.of(
        identity=[rng.randrange(identities) for _ in range(samples)],
        modality=[rng.choice(modalities) for _ in range(samples)],
        camera=[rng.randrange(6) for _ in range(samples)],
    )


def table_of(*identities):
    """Return a table of one string for each identity with a letter for each sample: `table_of("rri", "r")`."""
    names = {"r": "rgb", "i": "ir", "s": "sketch"}
    rows = [(identity, names[letter]) for identity, letters in enumerate(identities) for letter in letters]
    return MetadataTable.of(identity=[identity for identity, _ in rows], modality=[modality for _, modality in rows])
