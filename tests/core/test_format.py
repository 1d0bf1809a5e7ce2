import pytest

from penstock.core.format import format_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (524_288, "524 kB"),
        (999_600, "1 MB"),
        (1_234_567, "1.23 MB"),
        (83_100_000_000, "83.1 GB"),
        (2.5e18, "2500 PB"),
    ],
)
def test_sizes_read_in_three_digits(count, text):
    assert format_bytes(count) == text
