"""Turns a complete batch in its slab into the batch that the training loop gets."""
