"""Runs the flow: arena, slabs, workers, and the conductor that keeps them all busy. Knows no tar, no JPEG."""
