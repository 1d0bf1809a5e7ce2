"""Tests of this room find made.py here."""
