"""Who we are among the ranks: as told, or as `core.launch` finds it; and whether so many can share the lanes."""

from __future__ import annotations

from penstock.core.ranks import global_rank
from penstock.data.order.shuffle import RankShare
from penstock.errors import SettingError


def find_ranks(rank: int | None, world_size: int | None, lanes: int | None) -> RankShare:
    """Both given, or both found; the number of ranks must divide the lanes, where the order has any."""
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
