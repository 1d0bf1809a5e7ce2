"""A name that nobody knows, and the one that was probably meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


def meant(name: str, known: Collection[str]) -> str:
    """Advice: the nearest of the known names, or all of them."""
    near = get_close_matches(name, known, 1)
    return f"Perhaps {near[0]} is meant" if near else f"There are {', '.join(known)}"
