"""Moves decoded batches to the device of the training loop, and does the work that is left for the GPU."""
