"""Types and functions that other packages share; nothing here imports torch or starts a thread."""
