"""Benchmarks of Penstock. Both sides of a comparison run in turns in one run, so that a result is a ratio."""
