"""Who we are among the ranks: as told, as torch.distributed says, or as the launcher's environment says."""

from __future__ import annotations

import os
import sys

from penstock.errors import SettingError
from penstock.flow.order import Ranks


def find_ranks(rank: int | None, world_size: int | None, lanes: int | None) -> Ranks:
    """Both given, or both found; the number of ranks must divide the lanes, where the order has any."""
    if (rank is None) != (world_size is None):
        raise SettingError("rank and world_size go together", advice="Give both or neither")
    if rank is not None and world_size is not None:
        ranks = Ranks(rank, world_size)
    else:
        ranks = _from_torch() or _from_environment() or Ranks()
    if lanes is not None and lanes % ranks.world_size:
        fitting = ranks.world_size * -(-lanes // ranks.world_size)
        raise SettingError(
            f"{ranks.world_size} ranks cannot share {lanes} lanes evenly",
            advice=f"Give lanes as a multiple of the number of ranks, such as lanes={fitting}",
        )
    return ranks


def _from_torch() -> Ranks | None:
    """Only if torch is there already: looking must not import it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Ranks(distributed.get_rank(), distributed.get_world_size())


def _from_environment() -> Ranks | None:
    try:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except KeyError as missing:
        if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
            raise SettingError(f"the environment says who we are only by half: {missing} is not set") from None
        return None
    except ValueError as error:
        raise SettingError(f"RANK and WORLD_SIZE are not numbers: {error}") from error
    return Ranks(rank, world_size)
