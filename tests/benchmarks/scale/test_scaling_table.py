"""The table up to many GPUs, and the page that contains it."""

from benchmarks.document import lines_of
from benchmarks.scale.compare import Comparison
from benchmarks.scale.page import findings, page
from benchmarks.scale.scaling_table import COLUMNS, IMAGES, IMAGES_WITH_FEATURES, scaling_rows

COMPARISONS = [
    Comparison(load="a store", ranks="8", predicted=90, measured=100, bound="the store's bandwidth"),
    Comparison(load="caches", ranks="4 × 2", predicted=50, measured=100, bound="the step", hits=(0.25, 0.24)),
]


def test_the_step_is_the_lowest_bound_of_few_gpus_and_the_store_that_of_many():
    one, eight, many = scaling_rows(IMAGES_WITH_FEATURES, (1, 8, 64))
    assert len(one) == len(COLUMNS)
    assert [row[0] for row in (one, eight, many)] == ["1", "8", "64"]
    assert "step" in one[COLUMNS.index("lowest bound")]
    assert "store" in many[COLUMNS.index("lowest bound")]


def test_the_page_has_both_tables_and_counts_the_near_predictions():
    tables = {IMAGES: list(scaling_rows(IMAGES, (1,)))}
    text = page(COMPARISONS, tables, 0.25)
    assert "1 of 2 within 15%." in text
    assert "25% predicted, 24% measured" in text
    assert "### Images" in text
    assert [line.ratio for line in lines_of({"scale": findings(COMPARISONS, tables)})] == [0.5]
