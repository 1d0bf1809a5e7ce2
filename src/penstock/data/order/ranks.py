"""Which rank this process is."""

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


def find_ranks(rank: int | None, world_size: int | None) -> RankShare:
    """Return the rank that the user gave, else the one that torch.distributed or the launcher set."""
    if (rank is None) != (world_size is None):
        raise SettingError("rank and world_size go together", advice="Give both or neither")
    if rank is not None and world_size is not None:
        return RankShare(rank, world_size)
    found = global_rank()
    return RankShare() if found is None else RankShare(found.rank, found.world_size)
