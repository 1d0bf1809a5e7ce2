"""What reports say of a run of several ranks."""

from dataclasses import replace

from tests.support.report_runs import all_well, healthy

from penstock.core.finding import RankSummary, RankWait
from penstock.report.diagnosis import diagnosis_text
from penstock.report.html import render_html
from penstock.report.markdown import MOST_RANKS, render_markdown

SENTENCE = "Rank 3 holds the others back"


def of_ranks(count=4):
    each = tuple(RankWait(rank=rank, waited_s=rank + 1.0, last=rank / 10, alone_s=float(rank)) for rank in range(count))
    ranks = RankSummary(sentence=f"{SENTENCE}.", steps=99, exposed_s=9.0, share=0.3, holder=3, each=each)
    return replace(all_well(), ranks=ranks)


def test_who_holds_the_others_back_stands_right_below_the_verdict():
    first, second, third, *_ = diagnosis_text(of_ranks()).plain.splitlines()
    assert first.startswith("healthy: ")
    assert (second, third) == ("", f"{SENTENCE}.")


def test_the_document_lists_the_ranks_that_cost_most_first():
    text = render_markdown(healthy(), of_ranks(30))
    assert f"{SENTENCE}." in text
    rows = text.split("### Ranks")[1].split("\n\n")[1].splitlines()[2:]
    assert rows[0] == "| 29 | 30 s | 290% | 29 s |"
    assert len(rows) == MOST_RANKS


def test_the_page_says_it_too():
    assert SENTENCE in render_html(healthy(), of_ranks())


def test_one_rank_alone_is_not_mentioned():
    told = all_well()
    assert "anks" not in diagnosis_text(told).plain + render_markdown(healthy(), told)
