"""Settings for torch's DataLoader, found by a model and a few measurements; and a DataLoader that finds its own."""
