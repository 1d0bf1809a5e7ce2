"""Compares Penstock with the loaders that people use, on the same shards and with the same output.

kinds (what the shards hold) → data (makes them) → loaders/ (one module per loader) → single_run (one run in a fresh
process) → compare (all runs) → report. The peers are installed in an environment of their own (`environment`), so that
the package never depends on them.
"""
