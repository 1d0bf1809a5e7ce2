"""Penstock keeps a GPU fed."""

__version__ = "0.1.0.dev0"
