"""The sources of samples: each knows its samples, their order and their keys, and what workers do with them."""
