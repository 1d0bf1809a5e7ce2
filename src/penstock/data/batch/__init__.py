"""From a complete batch in its slab to the batch that the training loop gets."""
