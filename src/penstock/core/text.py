"""Text of messages and recordings: advice on a misspelt name, secrets removed, ASCII where an encoding needs it."""

from __future__ import annotations

import codecs
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


# -- encodings -----------------------------------------------------------------------------------------------------

ASCII_ERRORS = "penstock-ascii"
"""The name of the error handler that replaces characters which an encoding lacks; this module registers it."""
_GLYPHS = {
    "…": "...",
    "→": "->",
    "←": "<-",
    "↳": ">",
    "▶": ">",
    "▾": "v",
    "×": "x",
    "·": "-",
    "•": "-",
    "–": "-",
    "−": "-",
    "─": "-",
    "━": "=",
    "│": "|",
    "├": "+",
    "└": "+",
    "✓": "+",
    "✗": "x",
    "µ": "u",
    "±": "+/-",
    "≥": ">=",
    "≤": "<=",
    "²": "^2",
    "⁶": "^6",
    "°": " deg",
    "Σ": "sum ",
}
"""The characters that Penstock prints besides ASCII, each with the text that replaces it."""
_BARS = "▁▂▃▄▅▆▇█"


def ascii_glyphs(text: str) -> str:
    """Return the text in ASCII: glyphs by similar ones, other characters as their escapes."""
    return "".join(_ascii_glyph(char) for char in text)


def _ascii_glyph(char: str) -> str:
    if char.isascii():
        return char
    if char in _BARS:
        return "_.-:=+*#"[_BARS.index(char)]
    if "\u2800" <= char <= "\u28ff":  # braille, of spinners
        return "*"
    if "\u2500" <= char <= "\u257f":  # frames of tables
        return "-"
    return _GLYPHS.get(char) or char.encode("unicode_escape").decode()


def encodable(text: str, encoding: str) -> str:
    """Return the text with ASCII glyphs for the characters that the encoding lacks."""
    try:
        return text.encode(encoding, ASCII_ERRORS).decode(encoding)
    except LookupError:  # an encoding that Python does not know
        return ascii_glyphs(text)


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return ascii_glyphs(error.object[error.start : error.end]), error.end


codecs.register_error(ASCII_ERRORS, _replace_unencodable)
