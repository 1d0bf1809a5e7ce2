"""Penstock beside the loaders people use, on the same shards: same output, every key once, each peer at its best.

kinds → data → contestants/ → one (a run in a process of its own) → race → report. The peers live in an environment
of their own (`environment`), so that the package never depends on them.
"""
