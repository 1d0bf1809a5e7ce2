"""Who is on which sample, in what light, seen by which camera: metadata as identity-balanced batches need it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from penstock.errors import SettingError
from penstock.samplers.groups import Flags, Ids
from penstock.samplers.table import MetadataTable, Value


@dataclass(frozen=True, slots=True)
class PKColumns:
    """Which columns say what. Modality and camera are used where the metadata has them."""

    identity: str = "identity"
    modality: str = "modality"
    camera: str = "camera"


@dataclass(frozen=True)
class IdentityColumns:
    """One entry for each sample, numbered from 0 on."""

    identities: Ids
    modalities: Ids
    cameras: Ids
    known_modalities: list[Value]
    """Empty where the metadata does not tell."""

    @classmethod
    def of(cls, table: MetadataTable, columns: PKColumns) -> Self:
        """As the columns say."""
        identities, _ = table.column(columns.identity).codes()
        modalities, known = _codes(table, columns.modality)
        cameras, _ = _codes(table, columns.camera)
        return cls(identities, modalities, cameras, known)

    @property
    def cells(self) -> Ids:
        """One number for each modality at each camera."""
        return self.modalities * (int(self.cameras.max()) + 1) + self.cameras

    @cached_property
    def samples_of(self) -> Ids:
        """How many samples each identity has."""
        return np.bincount(self.identities)

    @cached_property
    def modalities_of(self) -> Ids:
        """How many modalities each identity has."""
        most = int(self.modalities.max()) + 1
        return np.bincount(np.unique(self.identities * most + self.modalities) // most)

    @property
    def pairable(self) -> Flags:
        """Which identities have two modalities or, where those are not known, two samples: a pair to learn from."""
        return np.greater(self.modalities_of if self.known_modalities else self.samples_of, 1)

    @property
    def complete(self) -> Flags:
        """Which identities have every modality."""
        if not self.known_modalities:
            raise SettingError("which identities are complete is not known: the metadata has no modality")
        return np.equal(self.modalities_of, len(self.known_modalities))

    def of_modality(self, modality: Value) -> Flags:
        """Which samples are of that modality."""
        if modality not in self.known_modalities:
            there = f"There are {', '.join(map(str, self.known_modalities))}" if self.known_modalities else None
            raise SettingError(f"no sample has modality {modality!r}", advice=there)
        return np.equal(self.modalities, self.known_modalities.index(modality))


def _codes(table: MetadataTable, name: str) -> tuple[Ids, list[Value]]:
    return table.column(name).codes() if name in table.columns else (np.zeros(len(table), np.int64), [])
