"""What some commands cannot do without."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.errors import SettingError


def need_torch(why: str) -> None:
    """Refused where it is not installed."""
    if find_spec("torch") is None:
        raise SettingError(f"torch is not installed, and {why}", advice="Install it: pip install 'penstock[torch]'")
