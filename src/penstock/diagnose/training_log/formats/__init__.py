"""How others write: one file per format, each a function from a line to what it says, or None."""
