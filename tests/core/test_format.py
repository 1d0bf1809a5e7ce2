import pytest

from penstock.core.format import (
    format_byte_rate,
    format_bytes,
    format_count,
    format_duration,
    format_gain,
    format_ms,
    format_number,
    format_percent,
    format_seconds,
    format_short,
)


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
def test_bytes_have_three_digits(count, text):
    assert format_bytes(count) == text


def test_byte_rates_are_sizes_per_second():
    assert format_byte_rate(2_380_000_000) == "2.38 GB/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3.5e-6, "3.5 µs"),
        (0.012, "12 ms"),
        (5.4, "5.4 s"),
        (90, "1.5 min"),
        (7200, "2 h"),
        (200_000, "2.31 d"),
    ],
)
def test_durations_use_the_largest_unit_of_which_they_have_one(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0125, "12.5 ms"), (5.4, "5.4 s"), (90, "90 s"), (599, "599 s"), (900, "15 min"), (9000, "2.5 h")],
)
def test_durations_of_logs_are_in_seconds_up_to_ten_minutes(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(22409.4, "22409"), (310.2, "310"), (12.34, "12.3"), (0.4, "0.4"), (0.042, "0.04"), (0, "0")]
)
def test_short_numbers_have_no_more_digits_than_are_read(value, text):
    assert format_short(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.1234, "0.123"), (12.34, "12.3"), (100.4, "100"), (12345.6, "12,346")])
def test_numbers_have_three_digits_or_are_whole(value, text):
    assert format_number(value) == text


def test_counts_have_their_noun_in_the_right_number():
    assert [format_count(count, "worker") for count in (0, 1, 3)] == ["0 workers", "1 worker", "3 workers"]
    assert format_count(2, "process", "processes") == "2 processes"


@pytest.mark.parametrize(("share", "text"), [(0, "0%"), (0.0123, "1.2%"), (0.0999, "10%"), (0.456, "46%"), (1, "100%")])
def test_small_percentages_have_a_decimal(share, text):
    assert format_percent(share) == text
    assert format_percent(share, unit=" %") == text.replace("%", " %")


@pytest.mark.parametrize(
    ("gain", "text"),
    [(0.85, "+85%"), (-0.1, "-10%"), (3.2, "×4.2"), (0.99, "+99%"), (1.0, "×2.0"), (None, "not known")],
)
def test_large_gains_are_factors_and_an_unknown_gain_is_named_so(gain, text):
    assert format_gain(gain) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00042, "0.42 ms"), (0.0123, "12 ms"), (3.14, "3.1 s"), (0.0, "0.00 ms")]
)
def test_times_of_steps_are_in_milliseconds_below_a_second(seconds, text):
    assert format_ms(seconds) == text
