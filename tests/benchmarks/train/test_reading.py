"""The benchmark of reading in a sampler's order, at toy size."""

import pytest
from benchmarks.result import Line, Table
from benchmarks.train.reading import measure


@pytest.mark.bench
def test_reads_are_counted_in_the_samplers_order_and_in_shard_order():
    *lines, table = measure(samples=960, rounds=1)
    by_name = {line.what: line for line in lines if isinstance(line, Line)}
    assert 0.3 < by_name["P×K over shards: reads per sample"].ratio <= 1.0
    assert 1.0 <= by_name["P×K over shards: bytes read per byte needed"].ratio < 40
    assert isinstance(table, Table)
    reads = {row[0]: float(row[3]) for row in table.rows}
    assert reads["shard order"] < 1 < reads["P×K"]
