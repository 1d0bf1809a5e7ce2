"""Tests of this room find what those of diagnoses make (made.py), and what ranks ask for (fleet_needs.py)."""
