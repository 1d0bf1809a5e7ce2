"""Which rank this process is, and whether the number of ranks divides the lanes of the order."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.ranks import global_rank
from penstock.errors import SettingError


@dataclass(frozen=True, slots=True)
class RankShare:
    """This rank, among the ranks that share an epoch."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise SettingError(f"rank {self.rank} is not below world size {self.world_size}")


def find_ranks(rank: int | None, world_size: int | None, lanes: int | None) -> RankShare:
    """Return the rank that the user gave, else the one that torch.distributed or the launcher set.

    The number of ranks must divide `lanes`, unless that is None because the order has no lanes.
    """
    if (rank is None) != (world_size is None):
        raise SettingError("rank and world_size go together", advice="Give both or neither")
    if rank is not None and world_size is not None:
        ranks = RankShare(rank, world_size)
    else:
        found = global_rank()
        ranks = RankShare() if found is None else RankShare(found.rank, found.world_size)
    if lanes is not None and lanes % ranks.world_size:
        fitting = ranks.world_size * -(-lanes // ranks.world_size)
        raise SettingError(
            f"{ranks.world_size} ranks cannot share {lanes} lanes evenly",
            advice=f"Give lanes as a multiple of the number of ranks, such as lanes={fitting}",
        )
    return ranks
