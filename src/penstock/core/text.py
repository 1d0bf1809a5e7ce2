"""Text of messages and recordings: advice on a misspelt name, and the removal of secrets."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches


def suggest_name(name: str, known: Collection[str]) -> str:
    """Return the advice for an unknown name: the closest of the known names, or all of them if none is close."""
    near = get_close_matches(name, known, 1)
    return f"Perhaps {near[0]} is meant" if near else f"There are {', '.join(known)}"


_QUERY = re.compile(r"""(https?://[^\s?#"']*)\?[^\s"']*""", re.IGNORECASE)
_USER = re.compile(r"""(://)[^\s/?#"']*@""")
_PASSWORD_WITH_SLASH = re.compile(r"""(://)[^\s/@:]+:(?![0-9]{1,5}/)[^\s"'@]*@""")
"""Half of all S3 secret keys contain a slash. What follows a host and its port is a path, not a password."""
_NAMED_SECRET = re.compile(
    r"""([\w-]*(?:secret|passw(?:or)?d|api[-_]?key|access[-_]?key|(?:auth|session|access|bearer|hf)[-_]?token)[\w-]*=
    |(?<![\w-])--?token=)[^\s"']+""",
    re.IGNORECASE | re.VERBOSE,
)
"""`--secret-key=…`, `AWS_SESSION_TOKEN=…`; but not `--max-tokens=512` or `--pad_token=…`, which scripts take."""


def redact_secrets(text: str) -> str:
    """Return the text with passwords and keys replaced by "…".

    Web addresses lose their query, which may be a signature. URLs lose their user and password. An option or a
    variable whose name marks it as a secret loses its value.
    """
    for pattern, replacement in (
        (_USER, r"\1"),
        (_PASSWORD_WITH_SLASH, r"\1"),
        (_QUERY, r"\1?…"),
        (_NAMED_SECRET, r"\1…"),
    ):
        text = pattern.sub(replacement, text)
    return text
