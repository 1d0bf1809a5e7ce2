"""Side by side, in one run, in turns: speed is a ratio, never a number from another day."""
