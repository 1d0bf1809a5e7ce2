"""What a sampler's order costs, at toy size."""

import pytest
from benchmarks.result import Line, Table
from benchmarks.train.reading import measure


@pytest.mark.bench
def test_reads_are_counted_beside_those_from_front_to_back():
    *lines, table = measure(samples=960, rounds=1)
    by_name = {line.what: line for line in lines if isinstance(line, Line)}
    assert 0.3 < by_name["P×K over shards: reads of a sample"].ratio <= 1.0
    assert 1.0 <= by_name["P×K over shards: bytes read, of those wanted"].ratio < 40
    assert isinstance(table, Table)
    reads = {row[0]: float(row[3]) for row in table.rows}
    assert reads["front to back"] < 1 < reads["P×K"]
