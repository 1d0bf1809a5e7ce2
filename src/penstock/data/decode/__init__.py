"""What workers do: decode the parts of samples, or get samples from a dataset, and write them into the slab."""
