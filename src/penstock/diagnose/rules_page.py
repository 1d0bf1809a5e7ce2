"""Generates docs/rules.md from the docstrings of the rules.

Run it as `python -m penstock.diagnose.rules_page > docs/rules.md`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from inspect import cleandoc

from penstock.diagnose.rules import all_rules

_INTRODUCTION = """\
# The rules

Each rule recognises one cause of a stall and has its own file in `src/penstock/diagnose/rules/`. `penstock diagnose`
applies all of them; [how a verdict comes about](diagnosing.md#how-a-verdict-comes-about) describes what follows from
their answers.
This page is generated from the docstrings of the rules: `python -m penstock.diagnose.rules_page > docs/rules.md`.
"""
_LEADERS = re.compile(r"^(Evidence|Similar causes|Remedy):", re.MULTILINE)
_QUOTED = re.compile(r"`(\w+)`")


def rules_page() -> str:
    """Return the page: a table of all rules, then a section for each of them, in the order of their names."""
    texts = {name: cleandoc(sys.modules[rule.__module__].__doc__ or "") for name, rule in all_rules().items()}
    return "\n".join([_INTRODUCTION, *_table(texts), *(_section(name, texts) for name in texts)])


def _table(texts: Mapping[str, str]) -> Iterator[str]:
    yield "| rule | cause |"
    yield "|---|---|"
    for name, text in texts.items():
        first = " ".join(text.partition("\n\n")[0].split())
        yield f"| {_link(name)} | {first} |"


def _section(name: str, texts: Mapping[str, str]) -> str:
    """Return the section of a rule, in which the names of other rules are links to their sections."""
    text = _LEADERS.sub(r"**\1:**", texts[name])
    linked = _QUOTED.sub(lambda found: _link(found[1]) if found[1] in texts else found[0], text)
    return f"\n## {name}\n\n{linked}"


def _link(name: str) -> str:
    return f"[`{name}`](#{name})"


if __name__ == "__main__":
    print(rules_page())
