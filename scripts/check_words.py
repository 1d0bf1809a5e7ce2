"""Fail on words that a newcomer does not know, and on docstrings that begin as a fragment of a sentence.

usage: python scripts/check_words.py [PATH ...]      default: the packages, tests, benchmarks, examples and pages

The words come from the table "Words that are not used" in docs/glossary.md. In Python files they are searched in
docstrings, comments, string literals and identifiers (identifiers are split at underscores and capitals); in Markdown
files in the prose, not in code.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
DEFAULT_PATHS = (
    "src",
    "tests",
    "benchmarks",
    "examples",
    "scripts",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
NOT_CHECKED = (GLOSSARY, Path(__file__))
"""The two files that list the words."""
FRAGMENT = re.compile(
    r"(Of|For|As|Nor|Who|Whose|Where|What|That|By|In|On|To|Or|And|But|With|Without|From|Nothing|Never|None of)\b"
)
"""A docstring that begins like this has no subject and verb of its own."""
ALLOWED = re.compile(r"look-alikes?|look_alikes?|LookAlikes?|lookahead|look-ahead")
EXEMPT_COMMENT = "glossary: allow"
"""A line with this comment may use the words, for example where another project's API is called."""

F_STRING_PARTS = (tokenize.FSTRING_MIDDLE,) if sys.version_info >= (3, 12) else ()

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


def check_python(source: str, banned: dict[str, str]) -> list[Finding]:
    """Return (line, problem) for every banned word and every docstring fragment of a Python source."""
    lines = source.splitlines()
    found: list[Finding] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT, *F_STRING_PARTS):
            for offset, text in enumerate(token.string.splitlines()):
                line = token.start[0] + offset
                if EXEMPT_COMMENT not in lines[line - 1]:
                    found += _banned_in(text, line, banned)
    return sorted(set(found) | set(_fragments(source)))


def check_markdown(source: str, banned: dict[str, str]) -> list[Finding]:
    """Return (line, problem) for every banned word in the prose of a Markdown page."""
    found: list[Finding] = []
    fenced = False
    for line, text in enumerate(source.splitlines(), 1):
        fenced ^= text.lstrip().startswith("```")
        if not fenced and EXEMPT_COMMENT not in text:
            found += _banned_in(re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text), line, banned)
    return found


def _banned_in(text: str, line: int, banned: dict[str, str]) -> Iterator[Finding]:
    for word in dict.fromkeys(words_in(text)):
        if word in banned:
            yield line, f"{word!r}: use {banned[word]}"


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
    for file in _files(paths or [str(ROOT / each) for each in DEFAULT_PATHS]):
        check = check_markdown if file.suffix == ".md" else check_python
        for line, problem in check(file.read_text(encoding="utf-8"), banned):
            print(f"{file}:{line}: {problem}")
            count += 1
    print(f"{count} problems found" if count else "no problems")
    return int(count > 0)


def _files(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the Python and Markdown files at or below the paths, except those that list the words."""
    for path in map(Path, paths):
        below = [path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.md")])
        yield from (file for file in below if file.resolve() not in NOT_CHECKED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
