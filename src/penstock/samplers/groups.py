"""Groups of K samples of one identity, and batches of P such groups: a pure function of the samples and the RNG.

An identity with n samples makes n // K groups, so that a sample occurs at most once an epoch; the remaining samples
wait for another epoch. With fewer than K samples it makes one group, in which they are repeated in turn. Where a
modality is ensured, each group begins with a sample of it; an identity that has fewer of these than groups repeats
them. Modalities and cameras are spread evenly over the groups.

Everything that does not change from epoch to epoch is computed once: an epoch takes two sorts and a few gathers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core.types import Bools, Ids


@dataclass(frozen=True)
class GroupMembers:
    """The samples that groups are made of, sorted by identity, then by cell (one modality at one camera)."""

    samples: Ids
    owners: Ids
    """Identity of each sample, numbered from 0 on, ascending."""
    cells: Ids
    """Cell of each sample, numbered from 0 on, ascending."""
    ensured: Bools | None
    """Whether each sample can begin a group; None where all can."""
    identities: Ids
    """The caller's number of each identity."""


def make_members(identities: Ids, cells: Ids, ensured: Bools | None) -> GroupMembers:
    """Sort the samples of a dataset, given one entry for each; leave out identities without an ensured sample."""
    samples = np.arange(len(identities))
    if ensured is not None:
        samples = samples[np.isin(identities, np.unique(identities[ensured]))]
    samples = samples[np.lexsort((cells[samples], identities[samples]))]
    known, owners = np.unique(identities[samples], return_inverse=True)
    _, cell_numbers = np.unique(owners * (int(cells.max()) + 1) + cells[samples], return_inverse=True)
    return GroupMembers(samples, owners, cell_numbers, None if ensured is None else ensured[samples], known)


class Grouping:
    """The division of the members into groups, which is drawn again for each epoch."""

    def __init__(self, members: GroupMembers, instances: int) -> None:
        self.members = members
        sizes = np.bincount(members.owners)
        self._starts = np.cumsum(sizes) - sizes
        self._cell_sizes = np.bincount(members.cells)
        cell_starts = np.cumsum(self._cell_sizes) - self._cell_sizes
        self._index_in_cell = np.arange(len(members.samples)) - cell_starts[members.cells]
        self.counts = _group_counts(members, sizes, instances)
        """Number of groups of each identity."""
        self.starts = np.cumsum(self.counts) - self.counts
        """Number of the first group of each identity."""
        self._heads = self._head_counts(sizes)
        self._positions = self._group_positions(sizes, instances)

    def draw(self, rng: np.random.Generator) -> Ids:
        """Return (groups, K): the samples of every group; the groups of an identity are neighbours."""
        drawn: Ids = self.members.samples[self._shuffled(rng)[self._positions]]
        return drawn

    def _shuffled(self, rng: np.random.Generator) -> Ids:
        """Shuffle the members of each identity with evenly mixed cells, and put those that begin groups first."""
        members = self.members
        count = len(members.samples)
        order = np.argsort(members.cells + rng.random(count))
        if len(self._cell_sizes) > len(members.identities):
            spread = (self._index_in_cell + rng.random(count)) / self._cell_sizes[members.cells]
            order = order[np.argsort(members.owners + spread)]
        if members.ensured is None:
            return order
        ensured = members.ensured[order]
        before: Ids = np.cumsum(ensured) - ensured
        heads = ensured & (before - before[self._starts][members.owners] < self._heads[members.owners])
        return order[np.argsort(2 * members.owners + ~heads, kind="stable")]

    def _head_counts(self, sizes: Ids) -> Ids:
        """Return how many samples of each identity are reserved to begin groups."""
        if self.members.ensured is None:
            return np.zeros_like(sizes)
        return np.minimum(self.counts, np.bincount(self.members.owners, self.members.ensured).astype(np.int64))

    def _group_positions(self, sizes: Ids, instances: int) -> Ids:
        """Return (groups, K): positions in the shuffled members; after the last of an identity its first come again."""
        owners = np.repeat(np.arange(len(sizes)), self.counts)
        number = np.arange(len(owners)) - self.starts[owners]
        heads, size = self._heads[owners], sizes[owners]
        if self.members.ensured is None:
            inside = number[:, None] * instances + np.arange(instances)
        else:
            rest = (heads + number * (instances - 1))[:, None] + np.arange(instances - 1)
            inside = np.concatenate(((number % heads)[:, None], rest), axis=1)
        return self._starts[owners][:, None] + inside % size[:, None]


def _group_counts(members: GroupMembers, sizes: Ids, instances: int) -> Ids:
    if members.ensured is None:
        return np.maximum(1, sizes // instances)
    ensured = np.bincount(members.owners, members.ensured).astype(np.int64)
    if instances == 1:
        return ensured
    full = sizes // instances
    return np.maximum(1, np.where(ensured >= full, full, (sizes - ensured) // (instances - 1)))


def max_batches(groups: Ids, identities: int) -> int:
    """Return the most batches of that many different identities that can be made of these numbers of groups."""
    low, high = 0, int(groups.sum()) // identities
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.minimum(groups, middle).sum()) >= middle * identities:
            low = middle
        else:
            high = middle - 1
    return low


def assign_groups(grouping: Grouping, order: Ids, batches: int, identities: int, rng: np.random.Generator) -> Ids:
    """Return (batches, P): the groups of every batch, no two of the same identity.

    `order` gives the identities that are assigned first. The batches are filled row by row, one group of every batch at
    a time. An identity whose groups begin in one row and end in the next has no more groups than there are batches, so
    in the next row it can be put into batches that it is not in yet.
    """
    counts = np.minimum(grouping.counts[order], batches)
    owners = np.repeat(order, counts)[: batches * identities].reshape(identities, batches)
    first = grouping.starts[order] - (np.cumsum(counts) - counts)
    groups = (np.repeat(first, counts) + np.arange(counts.sum()))[: owners.size].reshape(owners.shape)
    assigned, last_owners = np.empty_like(groups), np.full(batches, -1)
    for row, row_owners in zip(range(identities), owners, strict=True):
        free = rng.permutation(batches)
        taken = last_owners == row_owners[0]
        if taken.any():
            carried = int((row_owners == row_owners[0]).sum())
            free = free[np.argsort(taken[free], kind="stable")]
            free[carried:] = rng.permutation(free[carried:])
        assigned[row, free] = groups[row]
        last_owners[free] = row_owners
    return np.ascontiguousarray(assigned.T)
