import pkgutil
import re
from pathlib import Path

from tests.support.paths import DATA_FILES

from penstock.diagnose import rules
from penstock.diagnose.rules_page import rules_page
from penstock.diagnose.training_log.read import read_log
from penstock.diagnose.training_log.verdict import diagnose_log
from penstock.report.diagnosis import diagnosis_text

DOCS = Path(__file__).parents[2] / "docs"
LOG = DATA_FILES / "slow_batches.log"


def rule_names():
    return sorted(module.name for module in pkgutil.iter_modules(rules.__path__) if not module.name.startswith("_"))


def test_the_page_in_the_docs_is_what_the_rules_say():
    assert (DOCS / "rules.md").read_text(encoding="utf-8") == rules_page() + "\n", (
        "make it anew: python -m penstock.diagnose.rules_page > docs/rules.md"
    )


def test_every_rule_file_has_a_heading_and_a_remedy_or_says_that_there_is_none():
    pages = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", rules_page(), re.MULTILINE | re.DOTALL))
    assert sorted(pages) == rule_names()
    without = {name for name, text in pages.items() if "**Remedy:**" not in text}
    assert without == {"benign_pauses", "compute_bound"}


def test_links_lead_to_a_heading_of_the_page():
    page = rules_page()
    headings = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    links = set(re.findall(r"\]\(#(\w+)\)", page))
    assert links == headings


def test_a_look_alike_is_a_link():
    page = rules_page()
    assert "**Looks like** [`storage_bandwidth`](#storage_bandwidth) and [`decode_bound`](#decode_bound)" in page
    assert "`in_order=False`" in page


def test_links_between_the_pages_of_the_docs_lead_somewhere():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_docs_show_what_is_said_about_the_log_of_32_workers_but_for_what_they_leave_out():
    page = (DOCS / "diagnosing.md").read_text(encoding="utf-8")
    shown = re.search(r"^```\n(undetermined: A steady.*?)^```", page, re.MULTILINE | re.DOTALL)
    said = iter(diagnosis_text(diagnose_log(read_log(LOG))).plain.splitlines())
    for line in shown[1].splitlines():
        assert line == "…" or line in said, f"not said, or not in this order: {line}"
