import pkgutil
import re
from pathlib import Path

from tests.support.paths import DATA_FILES

from penstock.diagnose import rules
from penstock.diagnose.rules_page import rules_page
from penstock.diagnose.training_log.read import read_log
from penstock.diagnose.training_log.verdict import diagnose_log
from penstock.report.diagnose import diagnosis_text

DOCS = Path(__file__).parents[2] / "docs"
LOG = DATA_FILES / "slow_batches.log"


def rule_names():
    return sorted(module.name for module in pkgutil.iter_modules(rules.__path__) if not module.name.startswith("_"))


def test_the_page_in_the_docs_is_generated_from_the_rules():
    assert (DOCS / "rules.md").read_text(encoding="utf-8") == rules_page() + "\n", (
        "generate it: python -m penstock.diagnose.rules_page > docs/rules.md"
    )


def test_every_rule_has_a_section_with_its_evidence_and_its_remedy():
    pages = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", rules_page(), re.MULTILINE | re.DOTALL))
    assert sorted(pages) == rule_names()
    without = {name for name, text in pages.items() if "**Remedy:**" not in text}
    assert without == {"benign_pauses", "compute_bound"}  # these two never give a finding
    assert all("**Evidence:**" in text for text in pages.values())


def test_links_lead_to_headings_of_the_page():
    page = rules_page()
    headings = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    links = set(re.findall(r"\]\(#(\w+)\)", page))
    assert links == headings


def test_a_similar_cause_is_a_link_to_its_section():
    page = rules_page()
    assert "**Similar causes:** [`storage_bandwidth`](#storage_bandwidth) and [`decode_bound`](#decode_bound)" in page
    assert "`in_order=False`" in page


def test_links_between_the_pages_of_the_docs_lead_to_existing_pages():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_example_in_the_docs_is_the_diagnosis_of_the_log_of_32_workers():
    page = (DOCS / "diagnosing.md").read_text(encoding="utf-8")
    shown = re.search(r"^```\n(undetermined: A steady.*?)^```", page, re.MULTILINE | re.DOTALL)
    printed = iter(diagnosis_text(diagnose_log(read_log(LOG))).plain.splitlines())
    for line in shown[1].splitlines():
        assert line == "…" or line in printed, f"not printed, or not in this order: {line}"
