"""Fail on words that a newcomer does not know, and on docstrings that begin as a fragment of a sentence.

usage: python scripts/check_words.py [PATH ...]      default: src tests benchmarks examples

The words come from the table "Words that are not used" in docs/glossary.md. They are searched in docstrings, comments,
string literals and identifiers (identifiers are split at underscores and capitals).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
DEFAULT_PATHS = ("src", "tests", "benchmarks", "examples")
FRAGMENT = re.compile(
    r"(Of|For|As|Nor|Who|Whose|Where|What|That|By|In|On|To|Or|And|But|With|Without|From|Nothing|Never|None of)\b"
)
"""A docstring that begins like this has no subject and verb of its own."""
ALLOWED = re.compile(r"look-alikes?|look_alikes?|LookAlikes?|lookahead|look-ahead")
EXEMPT_COMMENT = "glossary: allow"
"""A line with this comment may use the words, for example where another project's API is called."""

Finding = tuple[int, str]


def banned_words(glossary: str) -> dict[str, str]:
    """Return each word of the glossary's second table with its replacement."""
    table = glossary.partition("## Words that are not used")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, flags=re.MULTILINE)[1:]
    return {word.strip(): use.strip() for words, use in rows for word in words.split(",")}


def words_in(text: str) -> Iterator[str]:
    """Yield the lower-case words of prose or of an identifier."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", ALLOWED.sub(" ", text))
    for word in re.findall(r"[A-Za-z]+(?:-[a-z]+)*", spaced):
        yield word.lower()
        if "-" in word:
            yield from word.lower().split("-")


def check_text(source: str, banned: dict[str, str]) -> list[Finding]:
    """Return (line, problem) for every banned word and every docstring fragment of a Python source."""
    lines = source.splitlines()
    found: list[Finding] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT):
            continue
        for offset, text in enumerate(token.string.splitlines()):
            line = token.start[0] + offset
            if EXEMPT_COMMENT in lines[line - 1]:
                continue
            for word in dict.fromkeys(words_in(text)):
                if word in banned:
                    found.append((line, f"{word!r}: use {banned[word]}"))
    return sorted(set(found) | set(_fragments(source)))


def _fragments(source: str) -> Iterator[Finding]:
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for item in body if isinstance(body, list) else ():
            if (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            ):
                first = item.value.value.strip()
                if FRAGMENT.match(first):
                    yield item.lineno, f"docstring begins as a fragment: {first.splitlines()[0][:60]!r}"


def main(paths: list[str]) -> int:
    """Print every problem below the paths; return 1 if there is one."""
    banned = banned_words(GLOSSARY.read_text(encoding="utf-8"))
    count = 0
    for path in map(Path, paths or [str(ROOT / each) for each in DEFAULT_PATHS]):
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            for line, problem in check_text(file.read_text(encoding="utf-8"), banned):
                print(f"{file}:{line}: {problem}")
                count += 1
    print(f"{count} problems" if count else "no problems")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
