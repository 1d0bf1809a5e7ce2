"""The commands of `penstock shards`: `ls`, `index`, `check` and `pack`."""
