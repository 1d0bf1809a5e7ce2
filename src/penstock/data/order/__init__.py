"""The order of an epoch: which samples each batch of this rank holds, decided before anything is read."""
