"""The table up to many GPUs, and the page around it."""

from benchmarks.document import lines_of
from benchmarks.scale.judge import Judged
from benchmarks.scale.page import findings, page
from benchmarks.scale.reach import COLUMNS, FEATURES, PICTURES, reach

JUDGED = [
    Judged(load="a store", ranks="8", predicted=90, measured=100, bound="the store's bandwidth"),
    Judged(load="caches", ranks="4 × 2", predicted=50, measured=100, bound="the step", hits=(0.25, 0.24)),
]


def test_one_training_grows_until_its_store_is_full():
    one, eight, many = reach(FEATURES, (1, 8, 64))
    assert len(one) == len(COLUMNS)
    assert [row[0] for row in (one, eight, many)] == ["1", "8", "64"]
    assert "step" in one[COLUMNS.index("first bound")]
    assert "store" in many[COLUMNS.index("first bound")]


def test_the_page_has_both_tables_and_counts_what_was_near():
    reached = {PICTURES: list(reach(PICTURES, (1,)))}
    text = page(JUDGED, reached, 0.25)
    assert "1 of 2 within 15%." in text
    assert "25% predicted, 24% measured" in text
    assert "### Pictures" in text
    assert [line.ratio for line in lines_of({"scale": findings(JUDGED, reached)})] == [0.5]
