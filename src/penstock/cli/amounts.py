"""Amounts on the command line: 500GB, 25GB/s, 100Gbit/s."""

from __future__ import annotations

import re

from penstock.errors import SettingError

_FORM = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kMGTP]?)(i?)(B|bit)?(?:/s)?\s*")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def bytes_in(text: str | None, option: str) -> float | None:
    """Bytes, or bytes per second: 1 kB is 1000, 1 KiB 1024, 8 bit a byte; a plain number is bytes. None stays None."""
    if text is None:
        return None
    found = _FORM.fullmatch(text.replace("K", "k", 1))
    if found is None or not float(found[1]) > 0:
        raise SettingError(
            f"{option}: {text!r} is no amount above 0", advice="Write 500GB, 25GB/s, 100Gbit/s or a number of bytes"
        )
    number, prefix, binary, unit = found.groups()
    return float(number) * float(1024 if binary else 1000) ** _POWERS[prefix] / (8 if unit == "bit" else 1)
