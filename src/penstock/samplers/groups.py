"""Groups of K samples of one identity, and batches of P such groups: a pure function of the samples and the dice.

An identity with n samples makes n // K groups, so that a sample comes at most once an epoch; the rest waits for
another one. With fewer than K samples it makes one group, in which they are repeated in turn. Where one modality is
ensured, each group begins with a sample of it; an identity that has fewer of these than groups gives them again.
Modalities and cameras are spread evenly over the groups.

Everything that does not change from epoch to epoch is reckoned out beforehand: an epoch is two sorts and a few gathers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class GroupMembers:
    """The samples to be drawn, identity after identity and in it cell after cell (one modality, one camera)."""

    samples: Ids
    owners: Ids
    """Identity of each, from 0 on, ascending."""
    cells: Ids
    """Cell of each, from 0 on, ascending."""
    ensured: Flags | None
    """Whether it can begin a group; None where all can."""
    identities: Ids
    """The identities themselves, as they were numbered before."""


def make_members(identities: Ids, cells: Ids, ensured: Flags | None) -> GroupMembers:
    """From one entry for each sample of a dataset; identities without an ensured sample are left out."""
    samples = np.arange(len(identities))
    if ensured is not None:
        samples = samples[np.isin(identities, np.unique(identities[ensured]))]
    samples = samples[np.lexsort((cells[samples], identities[samples]))]
    known, owners = np.unique(identities[samples], return_inverse=True)
    _, inside = np.unique(owners * (int(cells.max()) + 1) + cells[samples], return_inverse=True)
    return GroupMembers(samples, owners, inside, None if ensured is None else ensured[samples], known)


class Grouping:
    """How the members of each epoch make groups."""

    def __init__(self, members: GroupMembers, instances: int) -> None:
        self.members = members
        counts = np.bincount(members.owners)
        self._starts = np.cumsum(counts) - counts
        self._cell_counts = np.bincount(members.cells)
        cell_starts = np.cumsum(self._cell_counts) - self._cell_counts
        self._places = np.arange(len(members.samples)) - cell_starts[members.cells]
        self.counts = _groups(members, counts, instances)
        """Groups that each identity makes."""
        self.starts = np.cumsum(self.counts) - self.counts
        """The first group of each."""
        self._heads = self._heads_of(counts)
        self._at = self._members_of_groups(counts, instances)

    def draw(self, rng: np.random.Generator) -> Ids:
        """(groups, K): the samples of every group, those of an identity behind each other."""
        drawn: Ids = self.members.samples[self._sequence(rng)[self._at]]
        return drawn

    def _sequence(self, rng: np.random.Generator) -> Ids:
        """The members of each identity in random order, its cells evenly mixed; those that begin groups first."""
        members = self.members
        count = len(members.samples)
        order = np.argsort(members.cells + rng.random(count))
        if len(self._cell_counts) > len(members.identities):
            along = (self._places + rng.random(count)) / self._cell_counts[members.cells]
            order = order[np.argsort(members.owners + along)]
        if members.ensured is None:
            return order
        able = members.ensured[order]
        before: Ids = np.cumsum(able) - able
        heads = able & (before - before[self._starts][members.owners] < self._heads[members.owners])
        return order[np.argsort(2 * members.owners + ~heads, kind="stable")]

    def _heads_of(self, counts: Ids) -> Ids:
        """Samples of each identity that are set aside to begin groups."""
        if self.members.ensured is None:
            return np.zeros_like(counts)
        return np.minimum(self.counts, np.bincount(self.members.owners, self.members.ensured).astype(np.int64))

    def _members_of_groups(self, counts: Ids, instances: int) -> Ids:
        """(groups, K): places in the sequence. Behind the end of an identity its samples come again from the first."""
        owners = np.repeat(np.arange(len(counts)), self.counts)
        number = np.arange(len(owners)) - self.starts[owners]
        heads, count = self._heads[owners], counts[owners]
        if self.members.ensured is None:
            inside = number[:, None] * instances + np.arange(instances)
        else:
            rest = (heads + number * (instances - 1))[:, None] + np.arange(instances - 1)
            inside = np.concatenate(((number % heads)[:, None], rest), axis=1)
        return self._starts[owners][:, None] + inside % count[:, None]


def _groups(members: GroupMembers, counts: Ids, instances: int) -> Ids:
    if members.ensured is None:
        return np.maximum(1, counts // instances)
    able = np.bincount(members.owners, members.ensured).astype(np.int64)
    if instances == 1:
        return able
    full = counts // instances
    return np.maximum(1, np.where(able >= full, full, (counts - able) // (instances - 1)))


def most_batches(groups: Ids, identities: int) -> int:
    """The most batches of so many different identities each that can be made of these groups."""
    fewest, most = 0, int(groups.sum()) // identities
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if int(np.minimum(groups, middle).sum()) >= middle * identities:
            fewest = middle
        else:
            most = middle - 1
    return fewest


def deal(grouping: Grouping, order: Ids, batches: int, identities: int, rng: np.random.Generator) -> Ids:
    """(batches, P): the groups of every batch, none of them of the same identity.

    `order` says which identities are dealt out first. Row after row is filled, one place of every batch at a time; an
    identity that begins in one row and ends in the next has fewer groups than there are batches, so that the next row
    can put it where the row before has not.
    """
    counts = np.minimum(grouping.counts[order], batches)
    owners = np.repeat(order, counts)[: batches * identities].reshape(identities, batches)
    first = grouping.starts[order] - (np.cumsum(counts) - counts)
    groups = (np.repeat(first, counts) + np.arange(counts.sum()))[: owners.size].reshape(owners.shape)
    dealt, whose = np.empty_like(groups), np.full(batches, -1)
    for row, row_owners in zip(range(identities), owners, strict=True):
        free = rng.permutation(batches)
        taken = whose == row_owners[0]
        if taken.any():
            carried = int((row_owners == row_owners[0]).sum())
            free = free[np.argsort(taken[free], kind="stable")]
            free[carried:] = rng.permutation(free[carried:])
        dealt[row, free] = groups[row]
        whose[free] = row_owners
    return np.ascontiguousarray(dealt.T)
