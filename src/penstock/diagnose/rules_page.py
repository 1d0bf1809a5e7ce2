"""Generate the rules page of the docs from the rules' docstrings: `python -m penstock.diagnose.rules_page`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from inspect import cleandoc

from penstock.diagnose.rules import all_rules

_INTRODUCTION = """\
# The rules

One cause a file, in `src/penstock/diagnose/rules/`. `penstock diagnose` asks all of them; what becomes of their answers
is told in [how a verdict comes about](diagnosing.md#how-a-verdict-comes-about). This page is made from the rules' own
docstrings: `python -m penstock.diagnose.rules_page > docs/rules.md`.
"""
_LEADERS = re.compile(r"^(Looks like|Remedy:)", re.MULTILINE)
_QUOTED = re.compile(r"`(\w+)`")


def rules_page() -> str:
    """A table of all rules, then each one's page, in the order of their names."""
    texts = {name: cleandoc(sys.modules[rule.__module__].__doc__ or "") for name, rule in all_rules().items()}
    return "\n".join([_INTRODUCTION, *_table(texts), *(_page(name, texts) for name in texts)])


def _table(texts: Mapping[str, str]) -> Iterator[str]:
    yield "| rule | what it says |"
    yield "|---|---|"
    for name, text in texts.items():
        first = " ".join(text.partition("\n\n")[0].split())
        yield f"| {_link(name)} | {first} |"


def _page(name: str, texts: Mapping[str, str]) -> str:
    """The look-alikes of a rule lead to their own pages."""
    text = _LEADERS.sub(r"**\1**", texts[name])
    linked = _QUOTED.sub(lambda found: _link(found[1]) if found[1] in texts else found[0], text)
    return f"\n## {name}\n\n{linked}"


def _link(name: str) -> str:
    return f"[`{name}`](#{name})"


if __name__ == "__main__":
    print(rules_page())
