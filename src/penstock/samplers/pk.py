"""Identity-balanced batches: P identities with K samples each, with regard to modalities and cameras."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from penstock.core.contracts import BatchRequest
from penstock.core.types import Bools, Ids
from penstock.data.order.checkpoint import Identity
from penstock.data.order.ranks import find_ranks
from penstock.errors import SettingError
from penstock.samplers.epoch_batches import EpochBatches, check_count
from penstock.samplers.groups import Grouping, assign_groups, make_members, max_batches
from penstock.samplers.table import MetadataTable, Value

__all__ = ["PKColumns", "PKSampler", "PKSummary"]

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class PKColumns:
    """Names of the columns with the identity and, where the table has them, the modality and the camera."""

    identity: str = "identity"
    modality: str = "modality"
    camera: str = "camera"


@dataclass(frozen=True, slots=True)
class PKSummary:
    """The identities that a sampler found, and its first epoch."""

    identities: int
    pairable: int
    """Identities of two modalities or more; where modalities are not known, of two samples or more."""
    left_out: int
    """Identities without the ensured modality, which never occur."""
    short: int
    """Identities with fewer than K samples, which are repeated."""
    batches: int
    """Batches of an epoch on each rank."""
    waiting: int
    """Samples of the identities that are not left out that do not occur in the first epoch, on any rank; each epoch has
    others."""

    def __str__(self) -> str:
        pairable = f"{self.pairable:,} pairable ({self.pairable / self.identities:.1%})"
        parts = [f"{self.identities:,} identities", pairable]
        parts += [f"{self.left_out:,} left out because they lack the ensured modality"] if self.left_out else []
        parts += [f"{self.short:,} with too few samples, which are repeated"] if self.short else []
        waiting = f"{self.waiting:,} samples wait for another epoch"
        return f"{', '.join(parts)}; {self.batches:,} batches an epoch, {waiting}"


class PKSampler(EpochBatches):
    """Batches of `identities` × `instances` samples; those of an identity are neighbours.

        sampler = PKSampler(read_metadata(dataset, ".json"), 8, 4, ensure="rgb", prefer_complete=True)
        loader = penstock.Loader(dataset, batch_sampler=sampler)          # or torch's DataLoader

    `ensure` gives every identity in a batch at least one sample of that modality. With `prefer_complete`, identities of
    all modalities are assigned first: each batch gets its share of them, and the samples that wait are of the others.
    An epoch has as many full batches as can be made without an identity twice in one; a sample occurs at most once,
    except for identities with fewer than K samples, and for ensured samples of which their identity has fewer than
    groups. Ranks get different batches of the same epoch, each the same number.
    """

    def __init__(
        self,
        table: MetadataTable,
        identities: int,
        instances: int,
        *,
        ensure: str | int | None = None,
        prefer_complete: bool = False,
        seed: int = 0,
        columns: PKColumns = PKColumns(),  # noqa: B008 (it is frozen)
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check_count(identities=identities, instances=instances)
        super().__init__(identities * instances, seed, find_ranks(rank, world_size))
        found = IdentityColumns.from_table(table, columns)
        ensured = None if ensure is None else found.of_modality(ensure)
        members = make_members(found.identities, found.cells, ensured)
        if len(members.identities) < identities:
            condition = "" if ensure is None else f" with {ensure!r}"
            raise SettingError(
                f"a batch needs {identities} identities, and there are {len(members.identities)}{condition}",
                advice="Take fewer identities per batch",
            )
        self._per_batch = identities
        self._grouping = Grouping(members, instances)
        self._batches = max_batches(self._grouping.counts, identities)
        if self._batches < self.ranks.world_size:
            raise SettingError(f"{self._batches} batches cannot be divided between {self.ranks.world_size} ranks")
        self._assigned_last = ~found.complete[members.identities] if prefer_complete else None
        self._identity: Identity = {
            "kind": type(self).__name__,
            "seed": seed,
            "identities": identities,
            "instances": instances,
            "ensure": str(ensure),
            "prefer_complete": prefer_complete,
            "columns": str(columns),
            "samples": self._batches * self.batch_size,
            "fingerprint": table.fingerprint,
        }
        self.summary = self._summarise(found, instances)
        log.info("%s", self.summary)

    def _summarise(self, found: IdentityColumns, instances: int) -> PKSummary:
        members = self._grouping.members
        identities = len(found.sample_counts)
        return PKSummary(
            identities=identities,
            pairable=int(found.pairable.sum()),
            left_out=identities - len(members.identities),
            short=int((found.sample_counts[members.identities] < instances).sum()),
            batches=len(self),
            waiting=len(members.samples) - len(np.unique(self.batches(0)[: self.positions // self.batch_size])),
        )

    def batches(self, epoch: int) -> Ids:
        """Return (batches, P · K): all batches of an epoch, over all ranks."""
        rng = self.rng(epoch)
        groups = self._grouping.draw(rng)
        order = rng.permutation(len(self._grouping.counts))
        if self._assigned_last is not None:
            order = order[np.argsort(self._assigned_last[order], kind="stable")]
        assigned = assign_groups(self._grouping, order, self._batches, self._per_batch, rng)
        return groups[assigned].reshape(-1, self.batch_size)

    def batch_requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Yield this rank's batches: ranks take them in turn, and the last are left out if not every rank gets one."""
        done, ranks = position // self.batch_size, self.ranks
        batches = self.batches(epoch)[done:]
        steps = len(batches) // ranks.world_size
        own = batches[: steps * ranks.world_size][ranks.rank :: ranks.world_size]
        for step, samples in enumerate(own, 1):
            yield BatchRequest(epoch, samples, (done + step * ranks.world_size) * self.batch_size)

    @property
    def positions(self) -> int:
        """Samples in the batches that all ranks get."""
        return len(self) * self.ranks.world_size * self.batch_size

    def identity(self) -> Identity:
        """Return what determines the order of an epoch: with an equal identity, a position means the same batch."""
        return self._identity

    def __len__(self) -> int:
        return self._batches // self.ranks.world_size

    def __str__(self) -> str:
        return str(self.summary)


@dataclass(frozen=True)
class IdentityColumns:
    """Identity, modality and camera of each sample, each numbered from 0 on."""

    identities: Ids
    modalities: Ids
    cameras: Ids
    known_modalities: list[Value]
    """The modalities by number; empty where the table has no such column."""

    @classmethod
    def from_table(cls, table: MetadataTable, columns: PKColumns) -> Self:
        """Read the columns; a table without modality or camera has one of them for all samples."""
        identities, _ = table.column(columns.identity).codes()
        modalities, known = _optional_codes(table, columns.modality)
        cameras, _ = _optional_codes(table, columns.camera)
        return cls(identities, modalities, cameras, known)

    @property
    def cells(self) -> Ids:
        """A number for each sample's combination of modality and camera."""
        return self.modalities * (int(self.cameras.max()) + 1) + self.cameras

    @cached_property
    def sample_counts(self) -> Ids:
        """Number of samples of each identity."""
        return np.bincount(self.identities)

    @cached_property
    def modality_counts(self) -> Ids:
        """Number of modalities of each identity."""
        count = int(self.modalities.max()) + 1
        return np.bincount(np.unique(self.identities * count + self.modalities) // count)

    @property
    def pairable(self) -> Bools:
        """Whether each identity has a pair to learn from: two modalities or, where those are not known, two samples."""
        return np.greater(self.modality_counts if self.known_modalities else self.sample_counts, 1)

    @property
    def complete(self) -> Bools:
        """Whether each identity has every modality."""
        if not self.known_modalities:
            raise SettingError("it is not known which identities are complete: the metadata has no modality")
        return np.equal(self.modality_counts, len(self.known_modalities))

    def of_modality(self, modality: Value) -> Bools:
        """Return whether each sample is of that modality."""
        if modality not in self.known_modalities:
            known = f"There are {', '.join(map(str, self.known_modalities))}" if self.known_modalities else None
            raise SettingError(f"no sample has modality {modality!r}", advice=known)
        return np.equal(self.modalities, self.known_modalities.index(modality))


def _optional_codes(table: MetadataTable, name: str) -> tuple[Ids, list[Value]]:
    return table.column(name).codes() if name in table.columns else (np.zeros(len(table), np.int64), [])
