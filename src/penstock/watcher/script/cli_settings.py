"""What a script was asked for on its command line: a loader that has something else was changed on the way.

`num_workers = min(4, max(2, args.num_workers))` in somebody's helper is the usual case: the user asks for 32, gets 4,
and nobody says so. Values from files are not seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NAMES = {
    "num_workers": ("num_workers", "workers", "n_workers", "dataloader_num_workers"),
    "prefetch_factor": ("prefetch_factor", "prefetch", "dataloader_prefetch_factor"),
}
"""The names under which scripts take a setting, as --num-workers 32, --num_workers=32 or data.num_workers=32."""
_SETTINGS = {name: setting for setting, names in NAMES.items() for name in names}
_PAIR = re.compile(r"(?:--?)?(?:[\w-]+\.)*([\w-]{1,64})=(\d{1,6})")


def asked_for(arguments: Sequence[str]) -> dict[str, int]:
    """Settings by their torch names; the last one given counts, as with argparse."""
    found: dict[str, int] = {}
    for place, argument in enumerate(arguments):
        pair = _PAIR.fullmatch(argument)
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if pair is not None:
            name, value = pair[1], pair[2]
        elif argument.startswith("-") and following.isdecimal() and len(following) <= 6:
            name, value = argument.lstrip("-").rpartition(".")[2], following
        else:
            continue
        setting = _SETTINGS.get(name.replace("-", "_").lower())
        if setting is not None:
            found[setting] = int(value)
    return found
