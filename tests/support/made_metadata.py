"""Made-up people, seen in several lights, for the tests of samplers."""

import random

from penstock.samplers import MetadataTable

MODALITIES = ("rgb", "ir", "sketch")


def crowd(identities=20, samples=400, seed=0, modalities=MODALITIES):
    """Samples of as many identities, dealt out at random: some have many, some few."""
    dice = random.Random(seed)
    return MetadataTable.of(
        identity=[dice.randrange(identities) for _ in range(samples)],
        modality=[dice.choice(modalities) for _ in range(samples)],
        camera=[dice.randrange(6) for _ in range(samples)],
    )


def people(*persons):
    """One string for each person, a letter for each sample: `people("rri", "r")`."""
    names = {"r": "rgb", "i": "ir", "s": "sketch"}
    rows = [(person, names[letter]) for person, letters in enumerate(persons) for letter in letters]
    return MetadataTable.of(identity=[person for person, _ in rows], modality=[light for _, light in rows])
