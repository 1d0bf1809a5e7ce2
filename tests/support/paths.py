"""Paths that tests of several packages use."""

from pathlib import Path

DATA_FILES = Path(__file__).parents[1] / "data_files"
"""Recordings and training logs made by real runs."""
