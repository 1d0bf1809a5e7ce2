"""Numbers for people."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches


def format_bytes(count: float) -> str:
    """Three digits and a decimal unit: 1 MB is 10⁶ bytes, as in every rate."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.5 or unit == "PB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 99.95 else f"{value:.3g} {unit}"


def suggest_name(name: str, known: Collection[str]) -> str:
    """Advice: the nearest of the known names, or all of them."""
    near = get_close_matches(name, known, 1)
    return f"Perhaps {near[0]} is meant" if near else f"There are {', '.join(known)}"


_QUERY = re.compile(r"""(https?://[^\s?#"']*)\?[^\s"']*""", re.IGNORECASE)
_USER = re.compile(r"""(://)[^\s/?#"']*@""")
_SLASHED = re.compile(r"""(://)[^\s/@:]+:(?![0-9]{1,5}/)[^\s"'@]*@""")
"""A password with a slash in it, as half of the keys of S3 have one; what follows a host and its port is none."""
_NAMED = re.compile(
    r"""([\w-]*(?:secret|passw(?:or)?d|api[-_]?key|access[-_]?key|(?:auth|session|access|bearer|hf)[-_]?token)[\w-]*=
    |(?<![\w-])--?token=)[^\s"']+""",
    re.IGNORECASE | re.VERBOSE,
)
"""`--secret-key=…`, `AWS_SESSION_TOKEN=…`; but not `--max-tokens=512` or `--pad_token=…`, which trainings have."""


def redact_secrets(text: str) -> str:
    """The same, but for passwords and keys.

    Web addresses lose their queries, which may be signatures, URLs their user and password, and what is named as a
    secret its value.
    """
    for pattern, left in ((_USER, r"\1"), (_SLASHED, r"\1"), (_QUERY, r"\1?…"), (_NAMED, r"\1…")):
        text = pattern.sub(left, text)
    return text
