"""Benchmark of the examples with and without the habits of the field reports: their speed and their waits for data."""
