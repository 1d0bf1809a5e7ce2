"""The programs of workers: they decode parts, or get samples from a dataset, and write them into the slab."""
