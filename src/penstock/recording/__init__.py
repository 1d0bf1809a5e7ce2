"""The record of a run: append-only JSON lines, written while it goes, read on any machine, with or without torch."""
