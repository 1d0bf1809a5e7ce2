"""Identity-balanced batches: P identities with K samples each, aware of modalities and cameras."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.core.contracts import BatchRequest
from penstock.core.types import Ids
from penstock.data.order.checkpoint import Identity
from penstock.data.order.ranks import find_ranks
from penstock.errors import SettingError
from penstock.samplers.epoch_batches import EpochBatches, check_count
from penstock.samplers.groups import Grouping, deal, make_members, most_batches
from penstock.samplers.identity_columns import IdentityColumns, PKColumns
from penstock.samplers.table import MetadataTable

__all__ = ["PKColumns", "PKDraws", "PKSampler"]

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class PKDraws:
    """What a sampler has to draw from, and what it makes of it in an epoch."""

    identities: int
    pairable: int
    """Identities of two modalities or more; where modalities are not known, of two samples or more."""
    left_out: int
    """Identities without the ensured modality: they never come."""
    short: int
    """Identities that come with fewer than K samples: these are repeated."""
    batches: int
    """On each rank."""
    waiting: int
    """Samples of the others that do not come in the first epoch, on any rank; in every epoch other ones."""

    def __str__(self) -> str:
        share = f"{self.pairable:,} pairable ({self.pairable / self.identities:.1%})"
        parts = [f"{self.identities:,} identities", share]
        parts += [f"{self.left_out:,} left out for want of the ensured modality"] if self.left_out else []
        parts += [f"{self.short:,} with too few samples, which are repeated"] if self.short else []
        return f"{', '.join(parts)}; {self.batches:,} batches an epoch, {self.waiting:,} samples wait for another one"


class PKSampler(EpochBatches):
    """Batches of `identities` × `instances` samples, those of an identity next to each other.

        sampler = PKSampler(read_metadata(dataset, ".json"), 8, 4, ensure="rgb", prefer_complete=True)
        loader = penstock.Loader(dataset, batch_sampler=sampler)          # or torch's DataLoader

    `ensure` gives every identity in a batch at least one sample of that modality. With `prefer_complete`, identities of
    all modalities are dealt out first: each batch gets its share of them, and what has to wait is of the others.
    An epoch has as many full batches as can be made without an identity twice in one; a sample comes at most once, but
    for identities with fewer than K samples, and for ensured samples that are scarcer than their identity's groups.
    Ranks get different batches of the same epoch, each as many.
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
        super().__init__(identities * instances, seed, find_ranks(rank, world_size, None))
        people = IdentityColumns.of(table, columns)
        members = make_members(people.identities, people.cells, None if ensure is None else people.of_modality(ensure))
        if len(members.identities) < identities:
            having = "" if ensure is None else f" with {ensure!r}"
            raise SettingError(
                f"a batch needs {identities} identities, and there are {len(members.identities)}{having}",
                advice="Take fewer identities per batch",
            )
        self._per_batch = identities
        self._grouping = Grouping(members, instances)
        self._batches = most_batches(self._grouping.counts, identities)
        if self._batches < self.ranks.world_size:
            raise SettingError(f"{self._batches} batches cannot be shared out over {self.ranks.world_size} ranks")
        self._dealt_last = ~people.complete[members.identities] if prefer_complete else None
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
        self.found = self._look(people, instances)
        log.info("%s", self.found)

    def _look(self, people: IdentityColumns, instances: int) -> PKDraws:
        members = self._grouping.members
        return PKDraws(
            identities=len(people.samples_of),
            pairable=int(people.pairable.sum()),
            left_out=len(people.samples_of) - len(members.identities),
            short=int((people.samples_of[members.identities] < instances).sum()),
            batches=len(self),
            waiting=len(members.samples) - len(np.unique(self.batches(0)[: self.positions // self.batch_size])),
        )

    def batches(self, epoch: int) -> Ids:
        """(batches, P · K): all of an epoch, over all ranks."""
        rng = self.rng(epoch)
        groups = self._grouping.draw(rng)
        order = rng.permutation(len(self._grouping.counts))
        if self._dealt_last is not None:
            order = order[np.argsort(self._dealt_last[order], kind="stable")]
        return groups[deal(self._grouping, order, self._batches, self._per_batch, rng)].reshape(-1, self.batch_size)

    def batch_requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Batches are dealt to the ranks in turn; those at the end that not every rank would get are left out."""
        done, ranks = position // self.batch_size, self.ranks
        batches = self.batches(epoch)[done:]
        steps = len(batches) // ranks.world_size
        mine = batches[: steps * ranks.world_size][ranks.rank :: ranks.world_size]
        for step, samples in enumerate(mine, 1):
            yield BatchRequest(epoch, samples, (done + step * ranks.world_size) * self.batch_size)

    @property
    def positions(self) -> int:
        """Samples of the batches that all ranks get."""
        return len(self) * self.ranks.world_size * self.batch_size

    def identity(self) -> Identity:
        """What decides the order of an epoch: where all of it is the same, a place means the same batch."""
        return self._identity

    def __len__(self) -> int:
        return self._batches // self.ranks.world_size

    def __str__(self) -> str:
        return str(self.found)
